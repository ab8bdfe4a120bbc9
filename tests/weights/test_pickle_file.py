"""torch.save files: tensors come back, code never runs, anything else is refused with its name."""

import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pellucid.weights.errors import CheckpointError
from pellucid.weights.pickle_file import load_pickle

WEIGHTS = {"wte.weight": torch.arange(6.0).view(2, 3), "h.0.bias": torch.ones(3, dtype=torch.bfloat16)}


class Touches:
    """Pickled, a call that would make a file when it is read."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("place", ["alone", "beside the weights", "under model", "as metadata"])
@pytest.mark.parametrize("zipped", [True, False])
def test_sec_4_pickle(place, zipped, tmp_path):
    marker = tmp_path / "marker"
    bad = Touches(marker)
    content = {
        "alone": bad,
        "beside the weights": {**WEIGHTS, "bad": bad},
        "under model": {"model": {"bad": bad}},
        "as metadata": {"model": WEIGHTS, "optimizer": bad},
    }[place]
    path = tmp_path / "model.pt"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match="tensors and plain values only, got one that needs ") as error:
        load_pickle(path)
    assert str(path) in str(error.value)
    assert "no code of a pickle is run here" in str(error.value)
    assert "weights_only" not in str(error.value)
    assert not marker.exists()
    torch.load(path, weights_only=False)  # the trap itself works
    assert marker.exists()


@pytest.mark.parametrize(
    ("value", "needs"),
    [(torch.nn.Linear(1, 1), "'torch.nn.modules.linear.Linear'"), (Path("x"), "'pathlib.PosixPath'")],
)
def test_a_refusal_says_what_the_file_needs_and_nothing_of_torchs_advice(value, needs, tmp_path):
    """Torch's own words have colours, and say how to run the code all the same."""
    torch.save({"model": WEIGHTS, "settings": value}, tmp_path / "model.pt")
    with pytest.raises(CheckpointError) as error:
        load_pickle(tmp_path / "model.pt")
    assert str(error.value) == (
        f"{tmp_path / 'model.pt'}: expected a torch.save file that holds tensors and plain values only, got one that "
        f"needs {needs}: no code of a pickle is run here. Convert it to safetensors where it came from"
    )


@pytest.mark.parametrize("protocol", [0, 3, 4, 5])
def test_other_pickles_are_refused_without_warnings(protocol, tmp_path):
    (tmp_path / "model.pt").write_bytes(pickle.dumps({"a": [1, 2]}, protocol=protocol))
    with pytest.raises(CheckpointError, match=r"model.pt: expected a torch.save file") as error:
        load_pickle(tmp_path / "model.pt")
    assert "torch.load" not in str(error.value)


def test_sec_4_plain_pickle(tmp_path):
    marker = tmp_path / "marker"
    path = tmp_path / "model.bin"
    path.write_bytes(pickle.dumps(Touches(marker)))
    with pytest.raises(CheckpointError):
        load_pickle(path)
    assert not marker.exists()


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return list(found) == list(expected) and all(
        found[name].dtype == tensor.dtype and torch.equal(found[name], tensor) for name, tensor in expected.items()
    )


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("wrapper", [None, "model", "state_dict", "model_state_dict"])
def test_tensors_come_back(wrapper, zipped, tmp_path):
    path = tmp_path / "model.pt"
    content = {wrapper: OrderedDict(WEIGHTS), "optimizer": {"step": 7}, "best": 0.5} if wrapper else WEIGHTS
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    assert same(load_pickle(path), WEIGHTS)


def test_a_modules_own_state_dict(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LayerNorm(3))
    torch.save(module.state_dict(), tmp_path / "model.pt")
    assert same(load_pickle(tmp_path / "model.pt"), module.state_dict())


def test_parameters_come_back_as_tensors(tmp_path):
    torch.save({"w": torch.nn.Parameter(torch.ones(2))}, tmp_path / "model.pt")
    w = load_pickle(tmp_path / "model.pt")["w"]
    assert type(w) is torch.Tensor
    assert not w.requires_grad


def test_a_weight_called_model_is_a_weight(tmp_path):
    torch.save({"model": torch.ones(2)}, tmp_path / "model.pt")
    assert same(load_pickle(tmp_path / "model.pt"), {"model": torch.ones(2)})


def test_writing_never_reaches_the_file(tmp_path):
    path = tmp_path / "model.pt"
    torch.save(WEIGHTS, path)
    before = path.read_bytes()
    load_pickle(path)["wte.weight"].zero_()
    assert path.read_bytes() == before


REFUSED = {
    "a list": ([torch.ones(1)], "table of names and tensors, got a list"),
    "a tensor": (torch.ones(1), "table of names and tensors, got a Tensor"),
    "a number among tensors": ({"w": torch.ones(1), "step": 3}, "'step' with a int"),
    "a table among tensors": ({"w": torch.ones(1), "more": {"w": torch.ones(1)}}, "'more' with a dict"),
    "two levels": ({"model": {"inner": {"w": torch.ones(1)}}}, "'inner' with a dict"),
    "two tables": ({"model": {"w": torch.ones(1)}, "state_dict": {"w": torch.ones(1)}}, "'model', 'state_dict'"),
    "numbers as names": ({3: torch.ones(1)}, "3 with a Tensor"),
    "a sparse tensor": ({"w": torch.eye(2).to_sparse()}, "'w' with a Tensor"),
    "no data": ({"w": torch.ones(2, device="meta")}, "'w' with a Tensor"),
}


@pytest.mark.parametrize(("content", "says"), REFUSED.values(), ids=REFUSED)
def test_anything_but_names_and_tensors_is_refused(content, says, tmp_path):
    path = tmp_path / "model.pt"
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=says) as error:
        load_pickle(path)
    assert str(path) in str(error.value)


def test_sec_2_git_lfs_pointer(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n")
    with pytest.raises(CheckpointError, match="git-lfs pointer, file not downloaded"):
        load_pickle(path)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no such file"):
        load_pickle(tmp_path / "absent.pt")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a.txt", "text")
    for content, says in ((b"", "an empty one"), (b"text", "begins with b'text'"), (b"\x80\x02", "damaged or of")):
        (tmp_path / "other.pt").write_bytes(content)
        with pytest.raises(CheckpointError, match=rf"other.pt: expected a torch.save file.* got .*{says}"):
            load_pickle(tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match=r"other.zip: expected a torch.save file"):
        load_pickle(tmp_path / "other.zip")


@given(st.integers(0, 5000), st.integers(0, 255), st.booleans(), st.booleans())
def test_damaged_files_open_or_are_refused(tmp_path_factory, at, value, zipped, cut):
    path = tmp_path_factory.mktemp("damaged") / "model.pt"
    torch.save(WEIGHTS, path, _use_new_zipfile_serialization=zipped)
    content = bytearray(path.read_bytes())
    at %= len(content)
    content[at] = value
    path.write_bytes(content[:at] if cut else content)
    try:
        found = load_pickle(path)
    except CheckpointError:
        return
    assert all(isinstance(tensor, torch.Tensor) for tensor in found.values())

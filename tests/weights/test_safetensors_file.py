"""Safetensors files: hostile ones are refused before a weight is used, sound ones are mapped, saved ones come back."""

import json
import os
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from pellucid.weights.errors import CheckpointError
from pellucid.weights.safetensors_file import open_safetensors, save_safetensors
from pellucid.weights.safetensors_header import read_header


def write(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(shape: list, start: int, end: int, dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def shards(folder: Path, weight_map: dict[str, str], files: dict[str, dict[str, torch.Tensor]]) -> Path:
    for name, tensors in files.items():
        save_file(tensors, folder / name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


HOSTILE = {
    "more than its bytes": ({"w": entry([1000, 1000], 0, 4)}, 4, "takes 4000000 bytes"),
    "product beyond 64 bits": ({"w": entry([2**32, 2**32], 0, 0)}, 0, "takes 73786976294838206464 bytes"),
    "overlap": ({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, 12, "overlaps"),
    "gap": ({"a": entry([2], 0, 8), "b": entry([2], 12, 20)}, 20, "gap"),
    "reversed": ({"w": entry([1], 4, 0)}, 4, "span -4"),
    "negative shape": ({"w": entry([-1], 0, 4)}, 4, "whole numbers"),
    "unknown dtype": ({"w": entry([1], 0, 4, "F3")}, 4, "'F3'"),
    "cut short": ({"w": entry([4], 0, 16)}, 12, "cut short"),
    "trailing bytes": ({"w": entry([4], 0, 16)}, 20, "20 bytes of data"),
    "same offsets twice": ({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}, 4, "overlaps"),
    "truth as a number": ({"w": entry([True], 0, 4)}, 4, "whole numbers"),
    "fraction": ({"w": entry([1.0], 0, 4)}, 4, "whole numbers"),
    "three offsets": ({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 4]}}, 4, "two data_offsets"),
    "extra field": ({"w": {**entry([1], 0, 4), "more": 1}}, 4, "dtype, shape and data_offsets"),
    "not an entry": ({"w": [0, 4]}, 4, "dtype, shape and data_offsets"),
    "metadata not text": ({"__metadata__": {"a": 1}}, 0, "__metadata__"),
    "a list": ([1], 0, "JSON object"),
    "not JSON": (b"{", 0, "JSON"),
    "not UTF-8": (b'{"\xff": 1}', 0, "JSON"),
    "deep": (b"[" * 100_000, 0, "JSON"),
    "huge number": (b'{"w":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}', 4, "JSON"),
}


@pytest.mark.parametrize(("header", "data", "says"), HOSTILE.values(), ids=HOSTILE)
def test_sec_1_hostile_safetensors_header(header, data, says, tmp_path):
    path = write(tmp_path / "w.safetensors", header, bytes(data))
    with pytest.raises(CheckpointError) as error:
        open_safetensors(path)
    assert says in str(error.value)
    assert str(path) in str(error.value)


def test_sec_1_duplicate_keys_are_rejected(tmp_path):
    first, last = json.dumps(entry([2], 0, 8)), json.dumps(entry([1], 0, 4))
    path = write(tmp_path / "w.safetensors", f'{{"w":{first},"w":{last}}}'.encode(), bytes(4))
    with pytest.raises(CheckpointError, match="twice: 'w'"):
        open_safetensors(path)
    doubled = b'{"w":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    with pytest.raises(CheckpointError, match="twice: 'dtype'"):
        open_safetensors(write(tmp_path / "w.safetensors", doubled, bytes(4)))


def test_sec_1_good_files_are_accepted(tmp_path):
    scalar = open_safetensors(write(tmp_path / "scalar", {"w": entry([], 0, 4)}, struct.pack("<f", 2.5)))
    assert scalar["w"].shape == ()
    assert scalar["w"].item() == 2.5
    assert open_safetensors(write(tmp_path / "empty", {"w": entry([0, 5], 0, 0)}))["w"].shape == (0, 5)
    assert len(open_safetensors(write(tmp_path / "none", {}))) == 0


@pytest.mark.parametrize("length", [132_095_296, 2**64 - 1, 1000])
def test_sec_2_header_length(length, tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}")
    with pytest.raises(CheckpointError, match=f"header of {length} bytes"):
        open_safetensors(path)


def test_sec_2_size_is_believed_only_up_to_the_file(tmp_path):
    path = tmp_path / "w.safetensors"
    with path.open("wb") as file:  # a sparse file: as long as it says, but over the cap
        file.write(struct.pack("<Q", 100_000_001) + b"{}")
        file.truncate(200_000_000)
    with pytest.raises(CheckpointError, match="at most 100000000"):
        open_safetensors(path)


@pytest.mark.parametrize("size", [0, 7])
def test_sec_2_too_small(size, tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"\1" * size)
    with pytest.raises(CheckpointError, match=f"got {size} bytes"):
        open_safetensors(path)


def test_sec_2_git_lfs_pointer(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n")
    for opened in (path, tmp_path):
        with pytest.raises(CheckpointError, match="git-lfs pointer, file not downloaded"):
            open_safetensors(opened)


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/hostname", "a/../../x", "sub/x", "..", ".", "", "a\\b", "C:x", "a\0b"]
)
def test_sec_3_path_traversal(name, tmp_path):
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    for place in (tmp_path / "x.safetensors", tmp_path / "x", folder / "sub" / "x"):
        save_file({"w": torch.zeros(1)}, place)
    with pytest.raises(CheckpointError) as error:
        open_safetensors(shards(folder, {"w": name}, {}))
    assert "plain name" in str(error.value)
    assert repr(name) in str(error.value)


@pytest.mark.parametrize("name", ["x" * 256, "x" * 10**6, "\u00e9" * 128, "\ud800"])
def test_names_that_no_file_can_have_are_refused_in_a_line(name, tmp_path):
    with pytest.raises(CheckpointError, match="plain name of a file in this folder") as error:
        open_safetensors(shards(tmp_path, {"w": name}, {}))
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("value", [1, None, ["a"], {}])
def test_sec_3_file_names_are_text(value, tmp_path):
    with pytest.raises(CheckpointError, match="expected file names"):
        open_safetensors(shards(tmp_path, {"w": value}, {}))


@pytest.mark.parametrize("linked", ["model.safetensors", "model.safetensors.index.json", "shard.safetensors"])
def test_sec_3_symlink_out_of_the_folder(linked, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"w": torch.zeros(1)}, tmp_path / "secret")
    if linked == "shard.safetensors":
        shards(folder, {"w": linked}, {})
    (folder / linked).symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="leads out of its folder"):
        open_safetensors(folder)


def test_sec_3_symlink_that_leads_nowhere(tmp_path):
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError):
        open_safetensors(tmp_path)


def test_sec_3_symlink_inside_the_folder(tmp_path):
    save_file({"w": torch.ones(1)}, tmp_path / "real")
    (tmp_path / "model.safetensors").symlink_to("real")
    assert open_safetensors(tmp_path)["w"].item() == 1


def hub_cache(cache: Path) -> Path:
    """A repository with one shard in its own blobs, and one whose blob is a link into the blobs of the whole cache."""
    repository = cache / "models--org--name"
    snapshot = repository / "snapshots" / "0123abcd"
    for folder in (snapshot, repository / "blobs", cache / "blobs" / "ff"):
        folder.mkdir(parents=True)
    save_file({"a": torch.ones(1)}, repository / "blobs" / "aaaa")
    save_file({"b": torch.ones(2)}, cache / "blobs" / "ff" / "ffff")
    (repository / "blobs" / "bbbb").symlink_to("../../blobs/ff/ffff")
    for name, blob in (("a.safetensors", "aaaa"), ("b.safetensors", "bbbb")):
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    return shards(snapshot, {"a": "a.safetensors", "b": "b.safetensors"}, {})


def test_sec_3_hub_cache_opens(tmp_path):
    snapshot = hub_cache(tmp_path)
    assert sorted(open_safetensors(snapshot)) == ["a", "b"]
    linked = tmp_path / "elsewhere"
    linked.symlink_to(snapshot)
    assert sorted(open_safetensors(linked)) == ["a", "b"]


def test_sec_3_hub_cache_does_not_reach_another_repository(tmp_path):
    snapshot = hub_cache(tmp_path)
    other = tmp_path / "models--org--other" / "blobs"
    other.mkdir(parents=True)
    save_file({"a": torch.ones(1)}, other / "aaaa")
    (snapshot / "a.safetensors").unlink()
    (snapshot / "a.safetensors").symlink_to(other / "aaaa")
    with pytest.raises(CheckpointError, match="leads out of its folder"):
        open_safetensors(snapshot)


def test_ckpt_3_missing_shards_are_listed(tmp_path):
    weight_map = {"a": "1.safetensors", "b": "2.safetensors", "c": "3.safetensors"}
    folder = shards(tmp_path, weight_map, {"1.safetensors": {"a": torch.zeros(1)}})
    with pytest.raises(CheckpointError, match=r"2 of its 3 files are missing.*'2.safetensors', '3.safetensors'"):
        open_safetensors(folder)


def test_ckpt_3_key_absent_from_its_shard(tmp_path):
    weight_map = {"a": "1.safetensors", "b": "2.safetensors", "c": "1.safetensors"}
    files = {"1.safetensors": {"a": torch.zeros(1)}, "2.safetensors": {"b": torch.zeros(1)}}
    with pytest.raises(CheckpointError, match=r"names weights that are not there: 'c in 1.safetensors'"):
        open_safetensors(shards(tmp_path, weight_map, files))


def test_ckpt_3_key_absent_from_the_index(tmp_path):
    weight_map = {"a": "1.safetensors", "b": "2.safetensors"}
    files = {"1.safetensors": {"a": torch.zeros(1)}, "2.safetensors": {"b": torch.zeros(1), "a": torch.ones(1)}}
    with pytest.raises(CheckpointError, match=r"does not name weights that are there: 'a in 2.safetensors'"):
        open_safetensors(shards(tmp_path, weight_map, files))


def test_ckpt_3_sharded_weights_equal_the_unsharded(tmp_path):
    files = {"1.safetensors": {"a": torch.randn(3, 2)}, "2.safetensors": {"b": torch.randn(4), "c": torch.randn(1)}}
    weight_map = {weight: name for name, tensors in files.items() for weight in tensors}
    folder = shards(tmp_path, weight_map, files)
    for opened in (open_safetensors(folder), open_safetensors(folder / "model.safetensors.index.json")):
        assert set(opened) == {"a", "b", "c"}
        for tensors in files.values():
            for name, tensor in tensors.items():
                assert torch.equal(opened[name], tensor)


@pytest.mark.parametrize(
    "text", ["", "{}", '{"weight_map": {}}', '{"weight_map": []}', '{"weight_map": {"a":"x","a":"y"}}']
)
def test_ckpt_3_index_without_a_weight_map(text, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError):
        open_safetensors(tmp_path)


def test_nothing_to_open(tmp_path):
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match=r"expected model.safetensors or .*, found 'pytorch_model.bin'"):
        open_safetensors(tmp_path)
    with pytest.raises(CheckpointError, match="no such file"):
        open_safetensors(tmp_path / "absent.safetensors")


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="ordinary file"):
        open_safetensors(tmp_path)


def test_weights_are_views_of_the_file_and_writing_never_reaches_it(tmp_path):
    path = tmp_path / "w.safetensors"
    save_file({"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4)}, path)
    before = path.read_bytes()
    opened = open_safetensors(path)
    assert opened["a"].data_ptr() == opened["a"].data_ptr()
    opened["a"].mul_(7)
    opened["b"].zero_()
    assert path.read_bytes() == before
    assert torch.equal(open_safetensors(path)["a"], torch.arange(6.0).view(2, 3))


@pytest.mark.parametrize("pad", range(8))
def test_a_header_of_any_length_gives_aligned_numbers(pad, tmp_path):
    text = json.dumps({"w": entry([3], 0, 12)}).encode() + b" " * pad
    w = open_safetensors(write(tmp_path / "w.safetensors", text, struct.pack("<3f", 1, 2, 3)))["w"]
    assert w.data_ptr() % 4 == 0
    assert w.tolist() == [1, 2, 3]


@given(st.binary(min_size=0, max_size=60), st.integers(0, 200), st.integers(0, 255))
def test_damaged_files_open_or_are_refused(tmp_path_factory, noise, at, value):
    path = tmp_path_factory.mktemp("damaged") / "w.safetensors"
    save_file({"a": torch.arange(6.0).view(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}, path)
    whole = bytearray(path.read_bytes())
    whole[at % len(whole)] = value
    for content in (noise, bytes(whole), bytes(whole[: at % len(whole)]), bytes(whole) + noise[:3]):
        path.write_bytes(content)
        try:
            names = set(open_safetensors(path))
        except CheckpointError:
            continue
        with safe_open(path, framework="pt") as theirs:
            assert names == set(theirs.keys())


DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]


@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)), max_size=6))
def test_saved_tensors_come_back(tmp_path_factory, specs):
    path = tmp_path_factory.mktemp("saved") / "w.safetensors"
    tensors = {f"t{i}": (torch.rand(shape) * 9).to(dtype) for i, (dtype, shape) in enumerate(specs)}
    save_safetensors(path, tensors, {"made": "here"})
    for loaded in (load_file(path), open_safetensors(path)):
        assert set(loaded) == set(tensors)
        for name, tensor in tensors.items():
            assert loaded[name].dtype == tensor.dtype
            assert torch.equal(loaded[name], tensor)
    assert open_safetensors(path).metadata == {"format": "pt", "made": "here"}


def test_strided_tensors_are_saved_as_they_read(tmp_path):
    path = tmp_path / "w.safetensors"
    fused = torch.arange(24.0).view(4, 6)
    tensors = {"q": fused[:, :2], "k": fused[:, 2:4], "v": fused[:, 4:], "t": torch.arange(6.0).view(2, 3).T}
    save_safetensors(path, tensors)
    loaded = load_file(path)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_parameters_are_saved(tmp_path):
    save_safetensors(tmp_path / "w", {"w": torch.nn.Parameter(torch.ones(2))})
    assert torch.equal(load_file(tmp_path / "w")["w"], torch.ones(2))


WHOLE = torch.arange(24.0)
SHARED = {
    "the same": (WHOLE, WHOLE),
    "one within the other": (WHOLE, WHOLE[3:5]),
    "transposed": (WHOLE.view(4, 6), WHOLE.view(4, 6).T),
    "a row and a column": (WHOLE.view(4, 6)[1], WHOLE.view(4, 6)[:, 2]),
    "another type": (WHOLE, WHOLE.view(torch.int32)[:2]),
}


@pytest.mark.parametrize(("one", "other"), SHARED.values(), ids=SHARED)
def test_tensors_that_share_memory_are_refused(one, other, tmp_path):
    with pytest.raises(CheckpointError, match="share memory") as error:
        save_safetensors(tmp_path / "w", {"one": one, "apart": torch.ones(3), "other": other})
    assert "'one'" in str(error.value)
    assert "'other'" in str(error.value)
    assert list(tmp_path.iterdir()) == []


@given(st.data())
def test_sharing_is_found_exactly_where_elements_are_shared(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("shared") / "w"
    base = torch.arange(40.0)
    views = {}
    for name in "abc":
        shape = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
        stride = [data.draw(st.integers(0, 7)) for _ in shape]
        views[name] = base.as_strided(shape, stride, data.draw(st.integers(0, 18)))
    places = {name: set(view.flatten().tolist()) for name, view in views.items()}
    meet = any(places[x] & places[y] for x, y in (("a", "b"), ("a", "c"), ("b", "c")))
    if meet:
        with pytest.raises(CheckpointError, match="share memory"):
            save_safetensors(path, views)
    else:
        save_safetensors(path, views)
        assert all(torch.equal(load_file(path)[name], view) for name, view in views.items())


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(2, device="meta"), torch.ones(2, 2).to_sparse(), torch.ones(2, dtype=torch.complex64)],
    ids=["meta", "sparse", "complex"],
)
def test_what_the_format_cannot_hold_is_refused(tensor, tmp_path):
    with pytest.raises(CheckpointError, match="'w': expected a dense tensor"):
        save_safetensors(tmp_path / "w", {"w": tensor})


def test_reserved_name_and_missing_folder_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="__metadata__"):
        save_safetensors(tmp_path / "w", {"__metadata__": torch.ones(1)})
    with pytest.raises(CheckpointError, match="folder does not exist"):
        save_safetensors(tmp_path / "absent" / "w", {"w": torch.ones(1)})


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "w.safetensors"
    save_safetensors(path, {"w": torch.ones(2)})

    def full_disk(_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space left"):
        save_safetensors(path, {"w": torch.zeros(2)})
    assert [each.name for each in tmp_path.iterdir()] == ["w.safetensors"]
    assert torch.equal(load_file(path)["w"], torch.ones(2))


def test_saving_over_the_file_the_weights_come_from(tmp_path):
    path = tmp_path / "w.safetensors"
    save_safetensors(path, {"a": torch.arange(5.0), "b": torch.ones(3)})
    opened = open_safetensors(path)
    save_safetensors(path, {"b": opened["a"]})
    assert torch.equal(opened["a"], torch.arange(5.0))
    assert torch.equal(load_file(path)["b"], torch.arange(5.0))


def test_headers_state_types_and_shapes(tmp_path):
    save_file({"w": torch.ones(2, 3, dtype=torch.bfloat16)}, tmp_path / "w")
    found = read_header(tmp_path / "w").entries["w"]
    assert (found.dtype, found.shape, found.end - found.start) == (torch.bfloat16, (2, 3), 12)

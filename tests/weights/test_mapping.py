"""Mapping files: a user's names for any file of weights, held against Hugging Face's models; and hostile files."""

import io
import json
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from neighbours import assert_same_logits, assert_same_weights, meta_weights, tiny_llama
from pellucid.weights.errors import CheckpointError
from pellucid.weights.loading import load_checkpoint
from pellucid.weights.npz_file import open_npz

EXAMPLE = Path(__file__).parents[2] / "examples" / "glassllm.toml"
QKV = ["q", "k", "v"]
CONFIG = {
    "vocab_size": 37,
    "context_length": 64,
    "n_layers": 2,
    "d_model": 32,
    "n_heads": 4,
    "n_kv_heads": 2,
    "d_ff": 44,
    "positions": {"kind": "Rotary"},
    "norm": {"kind": "RMSNorm"},
    "activation": {"kind": "SwiGLU"},
    "qkv_bias": False,
    "out_bias": False,
    "ffn_bias": False,
    "tied": False,
}
NAMES = {
    "embed.token.weight": "E",
    "blocks.{}.attention.norm": "n1.{}",
    "blocks.{}.attention.qkv.weight": {"from": ["q.{}", "k.{}", "v.{}"], "transposed": True, "rotation": "interleaved"},
    "blocks.{}.attention.out.weight": {"from": "o.{}", "transposed": True},
    "blocks.{}.ffn.norm.weight": "n2.{}",
    "blocks.{}.ffn.gate.weight": {"from": ["w1.{}"], "transposed": True},
    "blocks.{}.ffn.up.weight": {"from": "w3.{}", "transposed": True},
    "blocks.{}.ffn.down.weight": {"from": "w2.{}", "transposed": True},
    "final_norm.weight": "n",
    "unembed.weight": {"from": "U", "transposed": False},
}
SHORT = {"attention_norm": "n1", "ffn_norm": "n2"}


def arrays(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """The model's weights under short names, matrices [in, out], rows of queries and keys for neighbours."""
    found = {}
    for name, weight in meta_weights(model).items():
        match name.split("."):
            case "tok_embeddings", _:
                found["E"] = weight
            case "output", _:
                found["U"] = weight
            case "norm", _:
                found["n"] = weight
            case "layers", layer, "attention_norm" | "ffn_norm" as kind, _:
                found[f"{SHORT[kind]}.{layer}" + (".weight" if kind == "attention_norm" else "")] = weight
            case "layers", layer, _, kind, _:
                found[f"{kind.removeprefix('w') if kind in ('wq', 'wk', 'wv', 'wo') else kind}.{layer}"] = weight.T
    return found


def describe(folder: Path, **changes) -> Path:
    """A mapping of the arrays, as JSON; a change of None takes the field out."""
    said = {"weights": "model.npz", "config": CONFIG, "names": NAMES} | changes
    path = folder / "mapping.json"
    path.write_text(json.dumps({name: value for name, value in said.items() if value is not None}))
    return path


def save_npz(path: Path, table: dict[str, torch.Tensor], packed: bool = True, **others) -> None:
    save = np.savez_compressed if packed else np.savez
    save(path, **{name: tensor.numpy() for name, tensor in table.items()}, **others)


@pytest.fixture
def model() -> LlamaForCausalLM:
    return tiny_llama()


@pytest.fixture
def mapping(model, tmp_path) -> Path:
    save_npz(tmp_path / "model.npz", arrays(model))
    return describe(tmp_path)


@pytest.mark.parametrize("packed", [True, False])
def test_npz(packed, model, tmp_path):
    """Transposed arrays are stored by column, which must come back as they were."""
    save_npz(tmp_path / "model.npz", arrays(model), packed)
    checkpoint = load_checkpoint(describe(tmp_path))
    assert_same_weights(model, checkpoint.transformer)
    assert_same_logits(model, checkpoint.transformer)
    assert (checkpoint.folder, checkpoint.tokenizer_file, checkpoint.generation) == (None, None, {})


@pytest.mark.parametrize("ending", ["safetensors", "pt", "bin"])
def test_other_files(ending, model, tmp_path):
    table = {name: tensor.contiguous() for name, tensor in arrays(model).items()}
    path = tmp_path / f"model.{ending}"
    save_file(table, path) if ending == "safetensors" else torch.save(table, path)
    assert_same_weights(model, load_checkpoint(describe(tmp_path, weights=path.name)).transformer)


def test_several_files_of_several_kinds(model, tmp_path):
    table = {name: tensor.contiguous() for name, tensor in arrays(model).items()}
    first = {name: table.pop(name) for name in list(table)[:5]}
    save_npz(tmp_path / "a.npz", first)
    save_file(table, tmp_path / "b.safetensors")
    path = describe(tmp_path, weights=["a.npz", "b.safetensors"])
    assert_same_weights(model, load_checkpoint(path).transformer)
    save_npz(tmp_path / "a.npz", first | {"w1.1": table["w1.1"]})
    with pytest.raises(CheckpointError, match=r"another of the files holds 'w1.1' too"):
        load_checkpoint(path)


def test_one_matrix_of_queries_keys_and_values(model, tmp_path):
    table = arrays(model)
    for layer in (0, 1):
        table[f"qkv.{layer}"] = torch.cat([table.pop(f"{letter}.{layer}").T for letter in QKV])
    save_npz(tmp_path / "model.npz", table)
    names = NAMES | {"blocks.{}.attention.qkv.weight": {"from": "qkv.{}", "rotation": "interleaved"}}
    assert_same_weights(model, load_checkpoint(describe(tmp_path, names=names)).transformer)


def test_half_split_rows_stay(model, tmp_path):
    """Without `rotation` rows are taken as they are: Hugging Face's own here."""
    table = arrays(model)
    for layer in (0, 1):
        attention = model.model.layers[layer].self_attn
        table[f"q.{layer}"], table[f"k.{layer}"] = (
            attention.q_proj.weight.T.detach(),
            attention.k_proj.weight.T.detach(),
        )
    save_npz(tmp_path / "model.npz", table)
    plain = {"from": ["q.{}", "k.{}", "v.{}"], "transposed": True}
    path = describe(tmp_path, names=NAMES | {"blocks.{}.attention.qkv.weight": plain})
    assert_same_weights(model, load_checkpoint(path).transformer)


def test_precisions(model, tmp_path):
    """The file's own, the mapping's, the caller's: each goes before the one before it."""
    save_npz(tmp_path / "model.npz", {name: tensor.half() for name, tensor in arrays(model).items()})
    for said, asked, got in ((None, None, "float16"), ("float32", None, "float32"), ("float32", "float64", "float64")):
        weights = load_checkpoint(describe(tmp_path, dtype=said), dtype=asked).transformer
        assert_same_weights(model.half().to(getattr(torch, got)), weights)


def test_what_else_a_mapping_says(model, tmp_path):
    save_npz(tmp_path / "model.npz", arrays(model), __config__=np.array("{}"), mask_0=np.ones(2), mask_1=np.ones(2))
    (tmp_path / "words.bin").write_bytes(b"")
    ends = {"eos_token_id": [2, 5]}
    path = describe(tmp_path, ignored=["__config__", "mask_{}"], tokenizer="words.bin", generation=ends)
    checkpoint = load_checkpoint(path)
    assert (checkpoint.tokenizer_file, checkpoint.generation) == (tmp_path / "words.bin", ends)
    with pytest.raises(CheckpointError, match="3 not known: '__config__', 'mask_0', 'mask_1'"):
        load_checkpoint(describe(tmp_path))


def test_the_example(tmp_path):
    """The shapes and names of the package that the example is for, with random numbers, against Hugging Face."""
    sizes = {"hidden_size": 128, "intermediate_size": 341, "num_hidden_layers": 4, "vocab_size": 1024}
    model = tiny_llama(**sizes, rms_norm_eps=1e-6, tie_word_embeddings=True, max_position_embeddings=128)
    theirs = {"n1": "norm1.gamma", "n2": "norm2.gamma", "q": "attn.W_Q", "k": "attn.W_K", "v": "attn.W_V"}
    theirs |= {"o": "attn.W_O", "w1": "ffn.W1", "w2": "ffn.W2", "w3": "ffn.W3"}
    table = {}
    for name, tensor in arrays(model).items():
        kind, _, layer = name.removesuffix(".weight").partition(".")
        table[f"blocks.{layer}.{theirs[kind]}" if layer else {"E": "E", "n": "norm_f.gamma"}[name]] = tensor
    save_npz(tmp_path / "en.npz", table, __config__=np.array("{}"))
    (tmp_path / "glassllm.toml").write_text(EXAMPLE.read_text())
    transformer = load_checkpoint(tmp_path / "glassllm.toml").transformer
    assert sum(weight.numel() for weight in transformer.parameters()) == 852608
    assert_same_weights(model, transformer)
    assert_same_logits(model, transformer)


# --- Mappings that do not fit ---


def without(name: str) -> dict:
    return {ours: theirs for ours, theirs in NAMES.items() if ours != name}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"surprise": 1}, "unknown fields that might change the model: surprise=1"),
        ({"weights": None}, "weights is missing"),
        ({"weights": 3}, "weights must be a name or a list of names, got 3"),
        ({"weights": "absent.npz"}, "absent.npz: no such file"),
        ({"weights": "mapping.json"}, "expected weights as .npz, .safetensors"),
        ({"config": None}, "config must be a table"),
        ({"config": CONFIG | {"n_layrs": 2}}, "n_layrs"),
        ({"config": CONFIG | {"positions": {"kind": "Rotory"}}}, "mapping.json: .*positions must name its kind"),
        ({"config": CONFIG | {"positions": {"kind": ["Rotary"]}}}, r"must name its kind, one of .*, got \['Rotary'\]"),
        ({"config": CONFIG | {"norm": {"kind": [1]}}}, r"norm must name its kind, one of .*, got \[1\]"),
        ({"config": CONFIG | {"norm": {"kind": "RMSNorm", "eps": float("inf")}}}, "expected finite numbers, got inf"),
        ({"config": CONFIG | {"logit_scale": 10**400}}, "expected finite numbers, got 1000"),
        ({"config": CONFIG | {"n_layers": 10**9}}, "1000000000 layers need more than its"),
        ({"config": CONFIG | {"d_ff": 2**61}}, "no machine can hold weights of these sizes"),
        ({"config": CONFIG | {"d_ff": 45}}, r"w1.0 must have shape \[32, 45\], got \[32, 44\]"),
        ({"config": CONFIG | {"n_layers": 3}}, "missing: 'k.2'"),
        ({"names": None}, "names must be a table"),
        ({"names": without("final_norm.weight")}, "the mapping.json layout has no place for final_norm.weight"),
        ({"names": NAMES | {"final.weight": "n"}}, "the config makes no weights named 'final.weight'"),
        ({"names": NAMES | {"unembed.weight": "E"}}, "not known: 'U'"),
        ({"names": NAMES | {"unembed.weight": "E"}, "ignored": ["U"]}, "names 'E' more than once"),
        ({"names": NAMES | {"final_norm.weight": {"from": "n", "transpose": True}}}, "unknown fields.*transpose=True"),
        ({"names": NAMES | {"final_norm.weight": 3}}, "from must be a name or a list of names, got 3"),
        ({"names": NAMES | {"final_norm.weight": ["n", "E"]}}, "is made of one tensor, got 2"),
        ({"names": NAMES | {"blocks.{}.attention.qkv.weight": ["q.{}", "k.{}"]}}, "one tensor, or of 3 stacked, got 2"),
        ({"names": NAMES | {"blocks.{}.ffn.up.weight": "w3.0"}}, "exactly where 'blocks.{}.ffn.up.weight' has it"),
        ({"names": NAMES | {"final_norm.weight": "n.{0.__class__}"}}, "exactly where"),
        ({"names": NAMES | {"final_norm.weight": {"from": "n", "rotation": "interleaved"}}}, "for attention.qkv where"),
        ({"config": CONFIG | {"positions": {"kind": "Learned"}}}, "positions are Rotary"),
        ({"dtype": "int8"}, "dtype must be one of float32"),
        ({"generation": {"eos_token_id": "end"}}, "generation of .*mapping.json: eos_token_id must be a token id"),
        ({"tokenizer": "absent.model"}, "absent.model: no such file"),
    ],
)
def test_mappings_that_do_not_fit(changes, message, mapping):
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(describe(mapping.parent, **changes))


def test_a_checkpoints_own_config_is_no_mapping(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}')
    with pytest.raises(CheckpointError, match=rf"A folder is opened by its name: '{tmp_path}'$"):
        load_checkpoint(tmp_path / "config.json")


@pytest.mark.parametrize("field", ["weights", "tokenizer"])
@pytest.mark.parametrize("name", ["../x.npz", "/etc/hostname", "a/../../x", "sub/x", "..", "x" * 900_000, "\ud800"])
def test_sec_3_path_traversal(name, field, mapping):
    with pytest.raises(CheckpointError, match="plain name of a file in this folder"):
        load_checkpoint(describe(mapping.parent, **{field: name}))


def test_sec_3_symlink_out(mapping, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "model.npz"
    outside.write_bytes((mapping.parent / "model.npz").read_bytes())
    os.symlink(outside, mapping.parent / "linked.npz")
    with pytest.raises(CheckpointError, match="leads out of its folder"):
        load_checkpoint(describe(mapping.parent, weights="linked.npz"))


@pytest.mark.parametrize("text", ["a = ", "a = 1\na = 2", "a = " + "[" * 10**5, "x = 1 #" + "y" * 10**6])
def test_toml_that_is_none(text, tmp_path):
    (tmp_path / "mapping.toml").write_text(text)
    with pytest.raises(CheckpointError, match=r"mapping\.toml: (not valid TOML|expected a mapping file of at most)"):
        load_checkpoint(tmp_path / "mapping.toml")


# --- Hostile .npz files ---


def npy(header: dict | bytes, data: bytes = b"", version: int = 1) -> bytes:
    text = header if isinstance(header, bytes) else repr(header).encode()
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + data


def zipped(path: Path, entries: dict[str, bytes], packing: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content, packing)
    return path


def head(shape: object, descr: object = "<f4", by_column: object = False) -> dict:
    return {"descr": descr, "fortran_order": by_column, "shape": shape}


HOSTILE = {
    "more than its bytes": (npy(head((1000, 1000)), bytes(4)), "takes 4000000 bytes, but 4 follow"),
    "product beyond 64 bits": (npy(head((2**32, 2**32)), b""), "takes 73786976294838206464 bytes"),
    "cut short": (npy(head((4,)), bytes(12)), "takes 16 bytes, but 12 follow"),
    "trailing bytes": (npy(head((4,)), bytes(20)), "takes 16 bytes, but 20 follow"),
    "negative shape": (npy(head((-1,)), bytes(4)), "whole numbers from 0"),
    "fraction": (npy(head((1.0,)), bytes(4)), "whole numbers from 0"),
    "not finite": (npy(head((1e999,)), bytes(4)), "not a Python dictionary|whole numbers from 0"),
    "truth as a number": (npy(head((True,)), bytes(4)), "whole numbers from 0"),
    "a list": (npy(head([1]), bytes(4)), "whole numbers from 0"),
    "order not a truth": (npy(head((1,), by_column=1), bytes(4)), "whole numbers from 0"),
    "no descr": (npy({"shape": (1,), "fortran_order": False}, bytes(4)), "expected descr, fortran_order and shape"),
    "not a dictionary": (npy(b"[1]", bytes(4)), "expected descr, fortran_order and shape"),
    "code": (npy(b"__import__('os').getcwd()", bytes(4)), "not a Python dictionary"),
    "deep": (npy(b"(" * 9000, b""), "not a Python dictionary"),
    "long header": (npy(b"{" + b" " * 20_000, b""), "a header of 20001 bytes"),
    "a lying header": (b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1), "a header of 4294967295 bytes"),
    "another version": (npy(head((1,)), bytes(4), version=9), "format of version 1 to 3"),
    "no array": (b"text", "format of version 1 to 3"),
    "nothing": (b"", "format of version 1 to 3|claims"),
}


@pytest.mark.parametrize(("content", "message"), HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_sec_1_hostile_arrays(content, message, packing, tmp_path):
    path = zipped(tmp_path / "model.npz", {"w.npy": content}, packing)
    with pytest.raises(CheckpointError, match=message) as error:
        open_npz(path)
    assert str(path) in str(error.value)


def test_sound_arrays(tmp_path):
    numbers = np.arange(6, dtype="<f4")
    many = {"scalar": numbers[0], "none": numbers[:0].reshape(0, 5), "a/b": numbers.reshape(2, 3)}
    np.savez(tmp_path / "model.npz", **many, column=np.asfortranarray(numbers.reshape(3, 2)))
    zipped(tmp_path / "v2.npz", {"w.npy": npy(head((6,)), numbers.tobytes(), version=2)})
    found = open_npz(tmp_path / "model.npz") | open_npz(tmp_path / "v2.npz")
    for name, array in (many | {"column": numbers.reshape(3, 2), "w": numbers}).items():
        assert torch.equal(found[name].read(), torch.tensor(array)), name


def test_sec_4_arrays_of_objects(mapping, tmp_path):
    """A pickle inside an array is never read."""
    file = io.BytesIO()
    np.save(file, np.array([Path("x")], dtype=object), allow_pickle=True)
    path = zipped(tmp_path / "objects.npz", {"w.npy": file.getvalue()})
    with pytest.raises(CheckpointError, match=r"expected numbers of type .*, got '\|O'"):
        open_npz(path)["w"].read()


@pytest.mark.parametrize("dtype", [">f4", "<c8", "<U3", "|b1"])
def test_types_that_are_no_numbers(dtype, tmp_path):
    np.savez(tmp_path / "model.npz", w=np.ones(2).astype(dtype))
    with pytest.raises(CheckpointError, match="expected numbers of type"):
        open_npz(tmp_path / "model.npz")["w"].read()


def test_zip_bombs(model, tmp_path):
    """What an entry claims must be possible, and nothing of it is unpacked before its shape is known to fit."""
    bomb = npy(head((25 * 10**6,)), bytes(10**8))
    path = tmp_path / "model.npz"
    save_npz(path, {name: tensor for name, tensor in arrays(model).items() if name != "E"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("E.npy", bomb, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 300_000
    with pytest.raises(CheckpointError, match=r"E must have shape \[37, 32\], got \[25000000\]"):
        load_checkpoint(describe(tmp_path))
    data = bytearray(path.read_bytes())
    place = data.rfind(struct.pack("<I", len(bomb)))  # the size in the directory at the end
    data[place : place + 4] = struct.pack("<I", 2**32 - 2)
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="claims 4294967294 bytes"):
        open_npz(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_entries_that_numpy_does_not_write(tmp_path):
    array = npy(head((1,)), bytes(4))
    with pytest.raises(CheckpointError, match="expected arrays"):
        open_npz(zipped(tmp_path / "a.npz", {"w.npy": array, "notes.txt": b""}))
    with pytest.raises(CheckpointError, match="packed in a way NumPy does not use"):
        open_npz(zipped(tmp_path / "b.npz", {"w.npy": array}, zipfile.ZIP_BZIP2))
    with zipfile.ZipFile(tmp_path / "c.npz", "w") as archive:
        archive.writestr("w.npy", array)
        archive.writestr("w.npy", array)
    with pytest.raises(CheckpointError, match="two arrays have one name, 'w'"):
        open_npz(tmp_path / "c.npz")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a sound .npz file"),
        (b"PK\x03\x04 and no more", "not a sound .npz file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs pointer, file not downloaded"),
    ],
)
def test_sec_2_not_an_npz_file(content, message, tmp_path):
    (tmp_path / "model.npz").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        open_npz(tmp_path / "model.npz")


@given(st.integers(0, 3000), st.integers(0, 255), st.booleans(), st.booleans())
def test_damaged_files_open_or_are_refused(tmp_path_factory, at, value, packed, cut):
    path = tmp_path_factory.mktemp("damaged") / "model.npz"
    save_npz(path, {"a": torch.arange(40.0).view(5, 8), "b": torch.ones(3).half()}, packed)
    content = bytearray(path.read_bytes())
    at %= len(content)
    content[at] = value
    path.write_bytes(content[:at] if cut else content)
    try:
        found = {name: array.read() for name, array in open_npz(path).items()}
    except CheckpointError:
        return
    assert sum(tensor.nbytes for tensor in found.values()) <= 1000

"""GGUF files: what another writer wrote is read alike, and nothing a hostile file says is believed."""

import math
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from hypothesis import given
from hypothesis import strategies as st

from pellucid.weights.errors import CheckpointError
from pellucid.weights.gguf_file import GGUF, read_gguf

U8, BOOL, U32, STRING, ARRAY, F32 = 0, 7, 4, 8, 9, 6


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, type_id: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", type_id) + value


def array(type_id: int, length: int, items: bytes = b"") -> bytes:
    return struct.pack("<IQ", type_id, length) + items


def info(name: str, dims: list[int], type_id: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_id, offset)


def build(pairs: list[bytes], infos: list[bytes], data: int = 0, counts: tuple[int, int] | None = None) -> bytes:
    """A version 3 file of the given parts, padded to 32; `counts` are what it says of its tensors and pairs."""
    head = b"GGUF" + struct.pack("<IQQ", 3, *(counts or (len(infos), len(pairs)))) + b"".join(pairs + infos)
    return head + bytes(-len(head) % 32) + bytes(data)


def read(folder: Path, content: bytes) -> GGUF:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return read_gguf(path)


VALUES = {
    "u8": (gguf.GGUFWriter.add_uint8, 200),
    "i8": (gguf.GGUFWriter.add_int8, -100),
    "u16": (gguf.GGUFWriter.add_uint16, 60_000),
    "i16": (gguf.GGUFWriter.add_int16, -30_000),
    "u32": (gguf.GGUFWriter.add_uint32, 4_000_000_000),
    "i32": (gguf.GGUFWriter.add_int32, -2_000_000_000),
    "u64": (gguf.GGUFWriter.add_uint64, 2**64 - 1),
    "i64": (gguf.GGUFWriter.add_int64, -(2**63)),
    "f32": (gguf.GGUFWriter.add_float32, 0.5),
    "f64": (gguf.GGUFWriter.add_float64, 0.1),
    "yes": (gguf.GGUFWriter.add_bool, True),
    "no": (gguf.GGUFWriter.add_bool, False),
    "text": (gguf.GGUFWriter.add_string, "ĠParis 巴黎\n"),
    "texts": (gguf.GGUFWriter.add_array, ["a", "", "Ġb", "x" * 300, "🙂"]),
    "numbers": (gguf.GGUFWriter.add_array, [1, -2, 3]),
    "fractions": (gguf.GGUFWriter.add_array, [0.5, -0.25]),
    "flags": (gguf.GGUFWriter.add_array, [True, False]),
    "nested": (gguf.GGUFWriter.add_array, [[1, 2], [3]]),
}


@pytest.fixture
def written(tmp_path):
    """A file by the gguf package's own writer, and the arrays it was given."""
    path = tmp_path / "written.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, (add, value) in VALUES.items():
        add(writer, f"test.{key}", value)
    rng = np.random.default_rng(0)
    arrays = {"matrix": rng.standard_normal((3, 64), np.float32), "vector": rng.standard_normal(5, np.float32)}
    arrays["four"] = rng.standard_normal((2, 3, 4, 5), np.float32)
    for name, values in arrays.items():
        writer.add_tensor(name, values)
    quantized = gguf.quants.quantize(arrays["matrix"], Type.Q8_0)
    writer.add_tensor("quantized", quantized, raw_dtype=Type.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, arrays, gguf.quants.dequantize(quantized, Type.Q8_0)


def test_metadata_of_every_type(written):
    metadata = read_gguf(written[0]).metadata
    assert metadata["general.architecture"] == "llama"
    for key, (_, value) in VALUES.items():
        assert metadata[f"test.{key}"] == value
        assert type(metadata[f"test.{key}"]) is type(value)


def test_tensors_have_rows_first_and_their_own_numbers(written):
    path, arrays, quantized = written
    tensors = read_gguf(path).tensors
    for name, expected in {**arrays, "quantized": quantized}.items():
        assert tensors[name].shape == expected.shape
        assert np.array_equal(tensors[name].read().numpy(), expected)
    assert tensors["quantized"].type == "Q8_0"
    assert tensors["quantized"].raw.shape == (3, 68)


def test_weights_are_views_of_the_file_and_writing_never_reaches_it(written):
    path = written[0]
    before = path.read_bytes()
    tensors = read_gguf(path).tensors
    matrix = tensors["matrix"].read()
    assert matrix.data_ptr() == tensors["matrix"].raw.data_ptr()
    matrix.zero_()
    tensors["quantized"].raw.zero_()
    assert path.read_bytes() == before


def test_version_2_is_read(written):
    path = written[0]
    whole = bytearray(path.read_bytes())
    whole[4] = 2
    path.write_bytes(whole)
    assert read_gguf(path).version == 2


def test_the_alignment_is_the_files_own(tmp_path):
    head = build([pair("general.alignment", U32, struct.pack("<I", 64))], [info("a", [2]), info("b", [2], 0, 64)])
    head += bytes(-len(head) % 64)
    opened = read(tmp_path, head + struct.pack("<2f", 1, 2) + bytes(56) + struct.pack("<2f", 3, 4))
    assert [opened.tensors[name].read().tolist() for name in "ab"] == [[1, 2], [3, 4]]


def test_a_scalar_and_no_tensors(tmp_path):
    assert read(tmp_path, build([], [info("s", [])], 4)).tensors["s"].read().shape == ()
    assert dict(read(tmp_path, build([], [])).tensors) == {}


def test_smollm2(smollm2_path):
    opened = read_gguf(smollm2_path)
    metadata = opened.metadata
    assert opened.version == 3
    assert metadata["llama.block_count"] == 30
    assert metadata["tokenizer.ggml.pre"] == "smollm"
    assert len(metadata["tokenizer.ggml.tokens"]) == 49_152
    assert len(metadata["tokenizer.ggml.merges"]) == 48_900
    assert opened.tensors["blk.0.ffn_down.weight"].shape == (576, 1536)
    assert sum(math.prod(tensor.shape) for tensor in opened.tensors.values()) == 134_515_008


STARTS = {
    "another format": (b"GGML" + bytes(60), "starts with the letters GGUF"),
    "too short": (b"GGUF\3\0\0\0", "starts with the letters GGUF"),
    "nothing": (b"", "starts with the letters GGUF"),
    "git-lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "git-lfs pointer, file not downloaded"),
    "version 1": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "got version 1"),
    "version 4": (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), "got version 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 3 in big-endian numbers"),
}


@pytest.mark.parametrize(("content", "says"), STARTS.values(), ids=STARTS)
def test_sec_2_not_a_gguf_file(content, says, tmp_path):
    with pytest.raises(CheckpointError, match=says) as error:
        read(tmp_path, content)
    assert "model.gguf" in str(error.value)


def nest(depth: int) -> bytes:
    return b"".join(array(ARRAY, 1) for _ in range(depth)) + array(U8, 1, b"\1")


HUGE = 2**63
HOSTILE = {
    "count of tensors": (build([], [], counts=(HUGE, 0)), "list of 9223372036854775808 tensors"),
    "count of tensors, just too many": (build([], [info("a", [1])], 4, counts=(5, 0)), "list of 5 tensors"),
    "count of entries": (build([], [], counts=(0, HUGE)), "list of 9223372036854775808 metadata"),
    "one entry more": (build([pair("a", U8, b"\1")], [], counts=(0, 2))[:39], "list of 2 metadata entries"),
    "key length": (build([struct.pack("<Q", HUGE) + b"a" * 20], []), "metadata key"),
    "key not UTF-8": (build([text(b"\xff\xfe") + struct.pack("<IB", 0, 1)], []), "UTF-8"),
    "key twice": (build([pair("a", U8, b"\1"), pair("a", U8, b"\2")], []), "'a' is given twice"),
    "value type": (build([pair("a", 13, bytes(8))], []), "value type from 0 to 12, got 13"),
    "string length": (build([pair("a", STRING, struct.pack("<Q", 2**40))], []), "needs 1099511627776 bytes"),
    "array of numbers": (build([pair("a", ARRAY, array(U32, 2**60))], []), "bytes, but the file ends"),
    "array of strings": (build([pair("a", ARRAY, array(STRING, 2**60))], []), "bytes, but the file ends"),
    "array of arrays": (build([pair("a", ARRAY, array(ARRAY, 2**60))], []), "bytes, but the file ends"),
    "a length in an array": (build([pair("a", ARRAY, array(STRING, 2, text("b") * 2))], [])[:65], "needs 8 bytes"),
    "a string in an array": (build([pair("a", ARRAY, array(STRING, 2, text("b") * 2))], [])[:66], "needs 1 bytes"),
    "depth": (build([pair("a", ARRAY, nest(5))], []), "arrays within one another"),
    "great depth": (build([pair("a", ARRAY, nest(50_000))], []), "arrays within one another"),
    "truth value": (build([pair("a", BOOL, b"\2")], []), "truth values of 0 or 1"),
    "truth values": (build([pair("a", ARRAY, array(BOOL, 3, b"\0\1\3"))], []), "truth values of 0 or 1"),
    "alignment of 0": (build([pair("general.alignment", U32, bytes(4))], []), "multiple of 8, got 0"),
    "alignment of 4": (build([pair("general.alignment", U32, struct.pack("<I", 4))], []), "multiple of 8, got 4"),
    "alignment of text": (build([pair("general.alignment", STRING, text("32"))], []), "multiple of 8, got '32'"),
    "split": (build([pair("split.count", U32, struct.pack("<I", 3))], []), "one of 3 parts of a split GGUF"),
    "name twice": (build([], [info("a", [1]), info("a", [1], 0, 32)], 64), "'a': this name is given twice"),
    "five dimensions": (build([], [info("a", [1] * 5)], 4), "at most 4 dimensions, got 5"),
    "many dimensions": (build([], [text("a") + b"\xff" * 40]), "at most 4 dimensions, got 4294967295"),
    "no size": (build([], [info("a", [0, 2])], 8), "dimensions from 1"),
    "product beyond 64 bits": (build([], [info("a", [2**32, 2**32])]), "cut short"),
    "largest product": (build([], [info("a", [2**64 - 1] * 4)]), "cut short"),
    "type not read": (build([], [info("a", [256], 20)], 200), "got IQ4_NL"),
    "type given up": (build([], [info("a", [256], 4)], 200), "got 4"),
    "type unknown": (build([], [info("a", [256], 4_000_000_000)], 200), "got 4000000000"),
    "half a block": (build([], [info("a", [16], 8)], 64), "multiple of 32 weights"),
    "rows of half blocks": (build([], [info("a", [16, 2], 8)], 64), "multiple of 32 weights"),
    "offset not aligned": (build([], [info("a", [1], 0, 4)], 64), "multiple of 32, got 4"),
    "offset past the end": (build([], [info("a", [1], 0, 2**63)], 64), "cut short"),
    "data cut short": (build([], [info("a", [17])], 64), "needs 68 bytes, but the file has 64"),
    "no data at all": (build([], [info("a", [1])]), "needs 4 bytes, but the file has 0"),
    "overlap": (build([], [info("a", [16]), info("b", [16], 0, 32)], 128), "inside the tensor before it"),
    "the same place": (build([], [info("a", [8]), info("b", [8])], 128), "inside the tensor before it"),
}


@pytest.mark.parametrize(("content", "says"), HOSTILE.values(), ids=HOSTILE)
def test_sec_1_hostile_gguf_header(content, says, tmp_path):
    with pytest.raises(CheckpointError, match=says) as error:
        read(tmp_path, content)
    assert "model.gguf" in str(error.value)


def test_sec_1_the_header_is_not_read_without_end(tmp_path):
    path = tmp_path / "model.gguf"
    with path.open("wb") as file:  # a sparse file whose one array could take all of it
        file.write(build([pair("a", ARRAY, array(U8, 2**33))], []))
        file.truncate(2**33 + 200)
    with pytest.raises(CheckpointError, match="longest header allowed"):
        read_gguf(path)


SOUND = build(
    [
        pair("a", STRING, text("text")),
        pair("b", ARRAY, array(STRING, 3, text("x") + text("") + text("yz"))),
        pair("c", ARRAY, array(F32, 2, struct.pack("<2f", 1, 2))),
        pair("d", ARRAY, array(ARRAY, 2, array(U8, 1, b"\1") + array(BOOL, 2, b"\0\1"))),
        pair("general.alignment", U32, struct.pack("<I", 32)),
        pair("split.count", U8, b"\1"),
    ],
    [info("first", [8, 2], 1), info("second", [32, 2], 8, 32), info("third", [256], 14, 128)],
    128 + 210,
)


def survives(folder: Path, content: bytes) -> None:
    """Read it all, or refuse it."""
    try:
        opened = read(folder, content)
    except CheckpointError:
        return
    for tensor in opened.tensors.values():
        assert tensor.read().shape == tensor.shape


def test_the_sound_file_is_sound(tmp_path):
    opened = read(tmp_path, SOUND)
    assert opened.metadata["b"] == ["x", "", "yz"]
    assert opened.metadata["d"] == [[1], [False, True]]
    assert {name: tensor.shape for name, tensor in opened.tensors.items()} == {
        "first": (2, 8),
        "second": (2, 32),
        "third": (256,),
    }


def test_sec_1_a_file_cut_anywhere_is_refused(tmp_path):
    for size in range(len(SOUND)):
        with pytest.raises(CheckpointError):
            read(tmp_path, SOUND[:size])


HEADER = SOUND.index(b"third") + 40  # the bytes that say something


@given(st.lists(st.tuples(st.integers(0, HEADER), st.integers(0, 255)), min_size=1, max_size=4))
def test_sec_1_changed_bytes(tmp_path_factory, changes):
    content = bytearray(SOUND)
    for at, value in changes:
        content[at] = value
    survives(tmp_path_factory.mktemp("gguf"), bytes(content))


@given(st.integers(8, HEADER), st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1]))
def test_sec_1_changed_numbers(tmp_path_factory, at, value):
    survives(tmp_path_factory.mktemp("gguf"), SOUND[:at] + struct.pack("<Q", value) + SOUND[at + 8 :])


@given(st.integers(0, HEADER), st.integers(0, HEADER), st.binary(max_size=20))
def test_sec_1_pieces_put_elsewhere(tmp_path_factory, start, end, between):
    survives(tmp_path_factory.mktemp("gguf"), SOUND[:start] + between + SOUND[end:])


@given(st.binary(max_size=200), st.integers(0, 3), st.integers(0, 3))
def test_sec_1_noise(tmp_path_factory, noise, tensors, entries):
    folder = tmp_path_factory.mktemp("gguf")
    survives(folder, noise)
    survives(folder, b"GGUF" + struct.pack("<IQQ", 3, tensors, entries) + noise)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no such file"):
        read_gguf(tmp_path / "absent.gguf")
    with pytest.raises(CheckpointError, match="found a folder"):
        read_gguf(tmp_path)


def test_tensors_out_of_order_and_with_gaps_are_read(tmp_path):
    content = build([], [info("a", [1], 0, 96), info("b", [1], 0, 32)], 96 + 4)
    opened = read(tmp_path, content[:-68] + struct.pack("<f", 5) + content[-64:-4] + struct.pack("<f", 7))
    assert opened.tensors["a"].read().item() == 7
    assert opened.tensors["b"].read().item() == 5
    assert opened.tensors["a"].raw.dtype == torch.uint8

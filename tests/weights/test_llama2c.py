"""llama2.c's files, written out here number by number, held against Hugging Face's model with the same weights."""

import math
import os
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from neighbours import assert_same_logits, assert_same_weights, meta_weights, tiny_llama
from pellucid.model.config import RMSNorm
from pellucid.model.rotary import Rotary
from pellucid.weights.errors import CheckpointError
from pellucid.weights.llama2c import open_llama2c
from pellucid.weights.loading import load_checkpoint

LAYER_0 = (
    *("attention_norm", "attention.wq", "attention.wk", "attention.wv", "attention.wo"),
    *("ffn_norm", "feed_forward.w1", "feed_forward.w2", "feed_forward.w3"),
)
LAYER_1 = (
    *("attention.wq", "attention.wk", "attention.wv", "attention.wo"),
    *("feed_forward.w1", "feed_forward.w2", "feed_forward.w3"),
)
SIZES = (32, 44, 2, 4, 2)  # width, FFN, layers, heads, key-value heads
CONTEXT = 30


def numbers(*tensors: torch.Tensor) -> bytes:
    return b"".join(struct.pack(f"<{each.numel()}f", *each.flatten().tolist()) for each in tensors)


def version_0(model: LlamaForCausalLM) -> bytes:
    """Embedding, every layer's norms and matrices one kind after another, last norm, two tables, unembedding."""
    weights = meta_weights(model)
    tied = "output.weight" not in weights
    angles = [[t * 10000.0 ** (-i / 8) for i in range(0, 8, 2)] for t in range(CONTEXT)]
    tables = [torch.tensor([[f(angle) for angle in row] for row in angles]) for f in (math.cos, math.sin)]
    layers = [weights[f"layers.{layer}.{name}.weight"] for name in LAYER_0 for layer in range(2)]
    end = [] if tied else [weights["output.weight"]]
    header = struct.pack("<7i", *SIZES, 37 if tied else -37, CONTEXT)
    return header + numbers(weights["tok_embeddings.weight"], *layers, weights["norm.weight"], *tables, *end)


def version_1(model: LlamaForCausalLM, version: int = 1) -> bytes:
    """A header of 256 bytes; norms first, then the embedding and the matrices, no tables."""
    weights = meta_weights(model)
    tied = "output.weight" not in weights
    header = b"24ka" + struct.pack("<8iB", version, *SIZES, 37, CONTEXT, tied)
    norms = [weights[f"layers.{layer}.{name}.weight"] for name in ("attention_norm", "ffn_norm") for layer in range(2)]
    layers = [weights[f"layers.{layer}.{name}.weight"] for name in LAYER_1 for layer in range(2)]
    end = [] if tied else [weights["output.weight"]]
    body = numbers(*norms, weights["norm.weight"], weights["tok_embeddings.weight"], *layers, *end)
    return header.ljust(256, b"\0") + body


@pytest.fixture
def path(tmp_path) -> Path:
    (tmp_path / "stories.bin").write_bytes(version_0(tiny_llama(tie_word_embeddings=True)))
    return tmp_path / "stories.bin"


@pytest.mark.parametrize("write", [version_0, version_1])
@pytest.mark.parametrize("tied", [True, False])
def test_both_versions_tied_and_untied(write, tied, tmp_path):
    model = tiny_llama(tie_word_embeddings=tied)
    (tmp_path / "model.bin").write_bytes(write(model))
    checkpoint = load_checkpoint(tmp_path / "model.bin")
    assert_same_weights(model, checkpoint.transformer)
    assert_same_logits(model, checkpoint.transformer)
    config = checkpoint.config
    assert (config.positions, config.norm, config.tied) == (Rotary(10000.0), RMSNorm(1e-5), tied)
    assert (config.vocab_size, config.context_length, config.d_ff) == (37, CONTEXT, 44)


def test_another_precision(path):
    transformer = load_checkpoint(path, dtype="float64").transformer
    assert {weight.dtype for weight in transformer.parameters()} == {torch.float64}
    assert_same_weights(tiny_llama(tie_word_embeddings=True).double(), transformer)


def test_writing_never_reaches_the_file(path):
    before = path.read_bytes()
    with torch.no_grad():
        for weight in load_checkpoint(path).transformer.parameters():
            weight.zero_()
    assert path.read_bytes() == before


def test_texts_end_at_the_token_that_starts_the_next(path):
    assert load_checkpoint(path).generation == {"bos_token_id": 1, "eos_token_id": [1, 2]}


@pytest.mark.parametrize(
    ("beside", "chosen"),
    [
        ((), None),
        (("tokenizer.model",), "tokenizer.model"),
        (("tokenizer.model", "tok37.model"), "tok37.model"),
        (("tok37.model", "tokenizer.bin", "tok512.bin"), "tokenizer.bin"),
        (("tokenizer.bin", "tok37.bin"), "tok37.bin"),
    ],
)
def test_the_vocabulary_beside_the_file(beside, chosen, path):
    for name in beside:
        (path.parent / name).write_bytes(b"")
    assert load_checkpoint(path).tokenizer_file == (chosen and path.parent / chosen)


def test_sec_3_vocabulary_that_leads_out(path, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "tokenizer.bin"
    outside.write_bytes(b"")
    os.symlink(outside, path.parent / "tokenizer.bin")
    with pytest.raises(CheckpointError, match="leads out of its folder"):
        load_checkpoint(path)


def test_cnt_1_parameter_counts(tmp_path):
    """llama2.c's stories15M, 42M and 110M, with a vocabulary of 32,000: 4 bytes a number, one shared matrix."""
    path = tmp_path / "stories.bin"
    published = {(288, 768, 6, 6): 15191712, (512, 1376, 8, 8): 41689600, (768, 2048, 12, 12): 109529856}
    for (width, ffn, layers, heads), count in published.items():
        tables = 2 * 1024 * (width // heads // 2)
        header = struct.pack("<7i", width, ffn, layers, heads, heads, 32000, 1024)
        with path.open("wb") as file:
            file.write(header)
            file.truncate(28 + 4 * (count + tables))
        transformer = open_llama2c(path, "cpu", None).transformer
        assert sum(weight.numel() for weight in transformer.parameters()) == count


# --- Hostile files ---

HEADERS = {
    "no width": ((0, 44, 2, 4, 2, 37, 30), "d_model must be at least 1, got 0"),
    "negative sizes": ((-32, 44, -2, 4, 2, 37, 30), "d_model, n_layers must be at least 1, got -32, -2"),
    "no vocabulary": ((32, 44, 2, 4, 2, 0, 30), "vocab_size must be at least 1"),
    "huge counts": ((2**30, 2**30, 2**30, 2**20, 2**20, -(2**31), 2**30), "bytes, but the file has"),
    "many layers": ((32, 44, 2**31 - 1, 4, 2, 37, 30), "bytes, but the file has"),
    "one layer less": ((32, 44, 1, 4, 2, 37, 30), "bytes, but the file has"),
    "one layer more": ((32, 44, 3, 4, 2, 37, 30), "bytes, but the file has"),
    "untied": ((32, 44, 2, 4, 2, -37, 30), "bytes, but the file has"),
    "heads that do not divide": ((32, 44, 2, 5, 5, 37, 30), "stories.bin: d_model must be a multiple of n_heads"),
    "groups that do not divide": ((32, 44, 2, 4, 3, 37, 30), "n_heads must be a multiple of n_kv_heads"),
    "heads of one feature": ((32, 44, 2, 32, 32, 37, 30), "must be even and at least 2"),
}


@pytest.mark.parametrize(("header", "message"), HEADERS.values(), ids=HEADERS)
def test_headers_that_lie(header, message, path):
    data = path.read_bytes()
    path.write_bytes(struct.pack("<7i", *header) + data[28:])
    with pytest.raises(CheckpointError, match=message) as error:
        load_checkpoint(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("change", [-4, -1, 1, 4, 1000])
def test_sec_2_files_cut_short_or_too_long(change, path):
    data = path.read_bytes()
    path.write_bytes(data[:change] if change < 0 else data + bytes(change))
    with pytest.raises(CheckpointError, match=f"bytes, but the file has {len(data) + change}. Download it again"):
        load_checkpoint(path)


def test_versions_that_are_not_read(tmp_path):
    model = tiny_llama(tie_word_embeddings=True)
    for version, kind in ((2, "int8 weights"), (3, "not known"), (-1, "not known")):
        (tmp_path / "model.bin").write_bytes(version_1(model, version))
        with pytest.raises(CheckpointError, match=rf"version {version} \({kind}\) is not read here"):
            load_checkpoint(tmp_path / "model.bin")


def test_a_flag_that_is_neither(tmp_path):
    data = bytearray(version_1(tiny_llama(tie_word_embeddings=True)))
    data[36] = 7
    (tmp_path / "model.bin").write_bytes(data)
    with pytest.raises(CheckpointError, match="shared classifier must be 0 or 1, got 7"):
        load_checkpoint(tmp_path / "model.bin")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "header of 28 bytes, but the file has 0"),
        (b"\x40\0\0\0", "header of 28 bytes, but the file has 4"),
        (b"24ka\x01\0\0\0".ljust(40, b"\0"), "header of 256 bytes, got 40"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs pointer, file not downloaded"),
        (b"PK\x03\x04".ljust(99, b"\0"), "got a torch.save file"),
        (b"\xff" * 300, "must be at least 1"),
        (b"GGUF".ljust(300, b"\0"), "must be at least 1"),
    ],
)
def test_sec_2_not_a_llama2c_file(content, message, tmp_path):
    (tmp_path / "model.bin").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path / "model.bin")


@given(st.integers(0, 60), st.integers(0, 255), st.sampled_from([version_0, version_1]), st.integers(0, 300))
def test_damaged_headers_open_or_are_refused(tmp_path_factory, at, value, write, cut):
    content = bytearray(write(tiny_llama(tie_word_embeddings=True)))
    content[at] = value
    path = tmp_path_factory.mktemp("damaged") / "model.bin"
    path.write_bytes(content[:cut] if cut < 280 else content)
    try:
        checkpoint = load_checkpoint(path)
    except CheckpointError:
        return
    assert checkpoint.config.d_model * checkpoint.config.vocab_size * 4 <= path.stat().st_size

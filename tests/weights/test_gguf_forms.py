"""GGUF's architectures, read from files that the gguf package wrote, and written for its reader and Hugging Face's."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from pellucid.model.config import Config
from pellucid.model.rotary import LongRope
from pellucid.model.transformer import Transformer
from pellucid.weights import gguf_saving, gguf_writing
from pellucid.weights.errors import CheckpointError
from pellucid.weights.gguf_file import read_gguf
from pellucid.weights.gguf_saving import save_gguf
from pellucid.weights.loading import load_checkpoint
from pellucid.weights.outline import outline
from pellucid.weights.presets import preset
from tiny import build
from twins import RIGHT, drawn, opened

IDS = torch.arange(22).reshape(2, 11) * 7 % 23
SHAPE = {
    "vocab_size": 23,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 16,
}
BANDS = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MODELS = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=23, n_positions=16, n_embd=64, n_layer=2, n_head=4)),
    "gptneox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SHAPE)),
    "gptneox serial": lambda: GPTNeoXForCausalLM(
        GPTNeoXConfig(**SHAPE, use_parallel_residual=False, attention_bias=False, tie_word_embeddings=True)
    ),
    "bert": lambda: BertModel(BertConfig(**SHAPE), add_pooling_layer=False),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=2)),
    "llama tied": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, head_dim=8, tie_word_embeddings=True)),
    "llama bands": lambda: LlamaForCausalLM(
        LlamaConfig(**SHAPE, rope_parameters=BANDS | {"rope_theta": 100.0, "original_max_position_embeddings": 16})
    ),
    "llama linear": lambda: LlamaForCausalLM(
        LlamaConfig(**SHAPE, rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0})
    ),
    "llama yarn": lambda: LlamaForCausalLM(
        LlamaConfig(
            **SHAPE,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 100.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        )
    ),
}
ARCHITECTURES = {
    "gpt2": gguf.MODEL_ARCH.GPT2,
    "gptneox": gguf.MODEL_ARCH.GPTNEOX,
    "bert": gguf.MODEL_ARCH.BERT,
    "llama": gguf.MODEL_ARCH.LLAMA,
}


def tiny(name: str):
    return drawn(MODELS[name]())


@torch.no_grad()
def output(hf) -> torch.Tensor:
    return hf(IDS, attention_mask=RIGHT)[0][RIGHT.bool()]


@torch.no_grad()
def assert_same_output(hf, transformer: Transformer, tolerance: float = 2e-5) -> None:
    ours = transformer.hidden(IDS, RIGHT) if transformer.unembed is None else transformer(IDS, RIGHT)
    assert (ours[RIGHT.bool()] - output(hf)).abs().max() <= tolerance * output(hf).abs().max()


def as_converted(name: str, values: np.ndarray, heads: int, groups: int) -> np.ndarray:
    """A weight as llama.cpp's converter stores it: [out, in], fused rows Q|K|V, Llama's rotated rows in pairs."""
    if values.ndim == 2 and any(part in name for part in ("c_attn", "c_proj", "c_fc")):
        return values.T
    if "query_key_value" in name:
        return values.reshape(heads, 3, -1, *values.shape[1:]).swapaxes(0, 1).reshape(values.shape)
    if "q_proj" in name or "k_proj" in name:
        rows = values.reshape(heads if "q_proj" in name else groups, 2, -1, *values.shape[1:])
        return rows.swapaxes(1, 2).reshape(values.shape)
    return values


def converted(architecture: str, hf) -> dict[str, np.ndarray]:
    """The weights under the names that the gguf package has for Hugging Face's."""
    names = gguf.get_tensor_name_map(ARCHITECTURES[architecture], 2)
    heads = hf.config.num_attention_heads
    groups = getattr(hf.config, "num_key_value_heads", heads)
    found = {}
    for name, weight in hf.named_parameters():
        theirs = names.get_name(name.replace("lm_head", "embed_out" if architecture == "gptneox" else "lm_head"),
                                try_suffixes=(".weight", ".bias"))  # fmt: skip
        assert theirs is not None, name
        found[theirs] = as_converted(name, weight.detach().numpy(), heads, groups)
    return found


def write_theirs(path: Path, architecture: str, hf, **changes) -> None:
    """A file by the gguf package's own writer alone; None leaves an entry out."""
    config = hf.config
    entries = {
        "context_length": 16,
        "embedding_length": 64,
        "block_count": 2,
        "feed_forward_length": 256 if architecture == "gpt2" else 96,
        "attention.head_count": config.num_attention_heads,
        "attention.layer_norm_epsilon": 1e-12 if architecture == "bert" else 1e-5,
    }
    if architecture == "gptneox":
        entries |= {"rope.dimension_count": 4, "use_parallel_residual": config.use_parallel_residual}
    if architecture == "bert":
        entries |= {"attention.causal": False, "pooling_type": 1}
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in (entries | changes).items():
        if value is not None:
            kind = gguf.GGUFValueType.get_type(value)
            kind = gguf.GGUFValueType.UINT32 if kind == gguf.GGUFValueType.INT32 else kind
            writer.add_key_value(f"{architecture}.{name}", value, kind)
    for name, values in converted(architecture, hf).items():
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# --- Reading ---


@pytest.mark.parametrize("name", ["gpt2", "gptneox", "gptneox serial", "bert"])
def test_files_of_the_gguf_package(name, tmp_path):
    hf = tiny(name)
    write_theirs(tmp_path / "m.gguf", name.split()[0], hf)
    assert_same_output(hf, load_checkpoint(tmp_path / "m.gguf").transformer)


def test_bert_says_how_it_is_pooled(tmp_path):
    write_theirs(tmp_path / "m.gguf", "bert", tiny("bert"))
    checkpoint = load_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.gguf_metadata["bert.pooling_type"] == 1
    assert (checkpoint.config.head, checkpoint.config.n_token_types) == (None, 2)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("gpt2", {"attention.causal": False}, "gpt2.attention.causal=False is not supported"),
        ("gpt2", {"attention.layer_norm_epsilon": None}, "layer_norm_epsilon is missing"),
        ("gpt2", {"attention.scale": 0.5}, "unknown fields.*gpt2.attention.scale"),
        ("gptneox", {"rope.dimension_count": 17}, r"rope.dimension_count must lie in 1..16, got 17"),
        ("gptneox", {"rope.scaling.type": "linear"}, "rope.scaling.type='linear' is not supported"),
        ("bert", {"attention.causal": True}, "bert.attention.causal=True is not supported"),
        ("bert", {"block_count": 2**31}, "block_count must be at most 10000"),
        ("bert", {"attention.head_count": 0}, "must be"),
    ],
)
def test_metadata_that_is_refused_by_name(name, changes, message, tmp_path):
    write_theirs(tmp_path / "m.gguf", name, tiny(name), **changes)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path / "m.gguf")


# --- Writing ---


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back(name, tmp_path):
    hf = tiny(name)
    first = opened(hf).transformer
    save_gguf(tmp_path / "m.gguf", first, type="f32")
    second = load_checkpoint(tmp_path / "m.gguf").transformer
    weights = second.state_dict()
    assert weights.keys() == first.state_dict().keys()
    assert all(torch.equal(weights[each], weight) for each, weight in first.state_dict().items())
    assert_same_output(hf, second)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
@pytest.mark.parametrize("name", ["gpt2", "gptneox", "bert", "llama"])
def test_what_the_gguf_package_reads(name, kind, tmp_path):
    """Every tensor, by its reader and its dequantizer, is what the package makes of the converter's own weights."""
    hf = tiny(name)
    save_gguf(tmp_path / "m.gguf", opened(hf).transformer, type=kind)
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert reader.fields["general.architecture"].contents() == name
    wanted = converted(name, hf)
    assert {tensor.name for tensor in reader.tensors} == wanted.keys()
    for tensor in reader.tensors:
        values = np.ascontiguousarray(wanted[tensor.name])
        single = values.ndim == 1 or tensor.name in ("position_embd.weight", "token_types.weight")
        expected = GGMLQuantizationType.F32 if single else GGMLQuantizationType[kind]
        assert tensor.tensor_type == expected
        raw = np.asarray(tensor.data)
        read = dequantize(raw, expected) if expected != GGMLQuantizationType.F16 else raw.astype(np.float32)
        made = dequantize(quantize(values, expected), expected)
        assert np.array_equal(read.reshape(values.shape), made.reshape(values.shape))


def test_rows_that_do_not_divide_into_blocks(tmp_path):
    model = build(Config(23, 16, 1, 48, 3, d_ff=64), dtype=torch.float32)
    save_gguf(tmp_path / "m.gguf", model, type="q8_0")
    types = {name: tensor.type for name, tensor in read_gguf(tmp_path / "m.gguf").tensors.items()}
    assert types["blk.0.ffn_down.weight"] == "Q8_0"
    assert types["blk.0.ffn_up.weight"] == "F16"
    assert types["blk.0.attn_norm.weight"] == types["position_embd.weight"] == "F32"


def test_metadata_passes_through(tmp_path):
    metadata = {
        "general.name": "tiny é",
        "general.file_type": 99,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["a", "b"],
        "tokenizer.ggml.scores": [0.5, -1.0],
        "tokenizer.ggml.token_type": [1, 3],
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.merges": [],
    }
    model = build(Config(23, 16, 1, 12, 3), dtype=torch.float32)
    save_gguf(tmp_path / "a.gguf", model, metadata=metadata)
    first = load_checkpoint(tmp_path / "a.gguf")
    assert first.generation == {"eos_token_id": [1]}
    kept = {key: value for key, value in first.gguf_metadata.items() if key.startswith(("general.", "tokenizer."))}
    save_gguf(tmp_path / "b.gguf", first.transformer, metadata=kept)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert {key: kept[key] for key in metadata if key not in ("general.file_type", "tokenizer.ggml.merges")} == {
        key: value for key, value in metadata.items() if key not in ("general.file_type", "tokenizer.ggml.merges")
    }
    assert kept["general.file_type"] == 1
    types = gguf.GGUFReader(tmp_path / "a.gguf").fields["tokenizer.ggml.token_type"].types
    assert types == [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.INT32]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mistral-7b-v0.1", r"nearest, llama, has no place for masks="),
        ("palm-8b", r"has no place for .*block=Parallel"),
        ("gpt3-125m", r"nearest, gpt2, has no place for masks="),
        ("bert-base-uncased", r"nearest, bert, has no place for head=MaskedLanguage"),
        ("transformer-base", r"has no place for"),
    ],
)
def test_what_gguf_has_no_place_for(name, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        save_gguf(tmp_path / "m.gguf", outline(preset(name)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("type", "metadata", "message"),
    [
        ("Q4_0", {}, "no type 'Q4_0' to save in, only F32, F16, BF16, Q8_0"),
        ("F16", {"llama.block_count": 3}, r"metadata is for tokenizer.\* and general.\*, got llama.block_count"),
        ("F16", {"tokenizer.x": {"a": 1}}, "metadata tokenizer.x: expected a text"),
        ("F16", {"tokenizer.x": [1, "a"]}, "must hold values of one kind"),
        ("F16", {"tokenizer.x": 2**70}, "metadata tokenizer.x: expected a text"),
    ],
)
def test_wishes_that_are_refused(type, metadata, message, tmp_path):
    model = outline(preset("gpt2"))
    with pytest.raises(CheckpointError, match=message):
        save_gguf(tmp_path / "m.gguf", model, type=type, metadata=metadata)
    assert list(tmp_path.iterdir()) == []


def test_what_stands_there_stays_when_saving_fails(tmp_path, monkeypatch):
    (tmp_path / "m.gguf").write_bytes(b"mine")
    monkeypatch.setattr(gguf_writing, "numbers", lambda tensor: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_gguf(tmp_path / "m.gguf", build(Config(23, 16, 1, 12, 3), dtype=torch.float32))
    assert [each.name for each in tmp_path.iterdir()] == ["m.gguf"]
    assert (tmp_path / "m.gguf").read_bytes() == b"mine"


def test_the_package_is_asked_for(tmp_path, monkeypatch):
    def absent():
        raise CheckpointError("writing GGUF needs the gguf package: pip install gguf")

    monkeypatch.setattr(gguf_writing, "library", absent)
    with pytest.raises(CheckpointError, match="pip install gguf"):
        save_gguf(tmp_path / "m.gguf", build(Config(23, 16, 1, 12, 3), dtype=torch.float32))
    assert gguf_saving.TYPES == gguf_writing.TYPES


def test_bands_come_back_pair_by_pair(tmp_path):
    save_gguf(tmp_path / "m.gguf", opened(tiny("llama bands")).transformer, type="F32")
    scaling = load_checkpoint(tmp_path / "m.gguf").config.positions.scaling
    assert isinstance(scaling, LongRope)
    assert scaling.short == scaling.long
    assert scaling.short[0] < scaling.short[-1] == 4.0

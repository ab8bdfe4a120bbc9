"""GPT-NeoX checkpoints, Pythia's form, held against Hugging Face's GPTNeoXForCausalLM on tiny random models."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from pellucid.model.config import Gelu, GeluTanh, Parallel, PreNorm
from pellucid.model.rotary import Linear, Rotary
from pellucid.weights.errors import CheckpointError
from pellucid.weights.gpt_neox import read_config
from pellucid.weights.loading import load_checkpoint
from twins import NEAR, SINGLE, assert_same_text_model, drawn, edited

SIZES = {
    "vocab_size": 23,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
}


def tiny(dtype=torch.float32, **fields) -> GPTNeoXForCausalLM:
    return drawn(GPTNeoXForCausalLM(GPTNeoXConfig(**(SIZES | fields))), dtype)


def rope(fraction: float, base: float = 100.0, **fields) -> dict:
    kind = {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": fraction}
    return {"rope_parameters": kind | fields}


@pytest.mark.parametrize(("dtype", "tolerance"), [SINGLE, NEAR])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"use_parallel_residual": False},
        {"attention_bias": False},
        {"tie_word_embeddings": True},
        {"layer_norm_eps": 0.1},
        {"hidden_act": "gelu_new"},
        rope(1.0),
        rope(0.5, rope_type="linear", factor=2.0),
    ],
    ids=str,
)
def test_logits(fields, dtype, tolerance):
    assert_same_text_model(tiny(dtype, **fields), tolerance, 23)


@settings(max_examples=5)
@given(
    heads=st.integers(1, 4),
    width=st.sampled_from([8, 16]),
    layers=st.integers(1, 3),
    d_ff=st.integers(1, 30),
    fraction=st.sampled_from([0.25, 0.5, 1.0]),
    parallel=st.booleans(),
    bias=st.booleans(),
)
def test_logits_of_drawn_configs(heads, width, layers, d_ff, fraction, parallel, bias):
    hf = tiny(
        torch.float64,
        num_attention_heads=heads,
        hidden_size=heads * width,
        num_hidden_layers=layers,
        intermediate_size=d_ff,
        use_parallel_residual=parallel,
        attention_bias=bias,
        **rope(fraction),
    )
    assert_same_text_model(hf, NEAR[1], 23)


@torch.no_grad()
def test_arch_5_fused_qkv_layout(tmp_path):
    """Two heads of two features; the fused rows numbered from 0 to 11, in the matrix and in the bias."""
    hf = tiny(num_attention_heads=2, hidden_size=4, num_hidden_layers=1, **rope(1.0))
    fused = hf.gpt_neox.layers[0].attention.query_key_value
    fused.weight.copy_(torch.arange(12.0)[:, None].expand(12, 4))
    fused.bias.copy_(torch.arange(12.0))
    hf.save_pretrained(tmp_path)
    qkv = load_checkpoint(tmp_path).transformer.blocks[0].attention.qkv
    rows = [*(0, 1, 6, 7), *(2, 3, 8, 9), *(4, 5, 10, 11)]  # queries, keys, values
    assert qkv.bias is not None
    assert (qkv.weight[:, 0].tolist(), qkv.bias.tolist()) == (rows, rows)


@torch.no_grad()
def test_names_and_buffers_of_other_releases(tmp_path):
    """lm_head for embed_out, causal masks and rotary frequencies in the file, and the old spelling of the rotation."""
    hf = tiny(**rope(0.5))
    hf.save_pretrained(tmp_path)

    def change(tensors):
        tensors["lm_head.weight"] = tensors.pop("embed_out.weight")
        for layer in range(2):
            place = f"gpt_neox.layers.{layer}.attention"
            tensors[f"{place}.bias"] = torch.ones(1, 1, 16, 16)
            tensors[f"{place}.masked_bias"] = torch.tensor(-1e9)
            tensors[f"{place}.rotary_emb.inv_freq"] = torch.ones(2)
        return tensors

    edited(tmp_path, change, rope_parameters=None, rotary_pct=0.5, rotary_emb_base=100)
    ids = torch.arange(11)[None]
    ours, theirs = load_checkpoint(tmp_path).transformer(ids), hf(ids).logits
    assert (ours - theirs).abs().max() <= 2e-5 * theirs.abs().max()


def config_json(**fields) -> dict:
    return {"model_type": "gpt_neox", **SIZES, **fields}


def test_records():
    def read(**fields):
        return read_config(config_json(**fields), "here")[0]

    assert read().positions == Rotary(10000.0, 0.25)
    assert read(rotary_pct=0.5, rotary_emb_base=500).positions == Rotary(500.0, 0.5)
    scaled = read(rotary_pct=0.5, rope_scaling={"type": "linear", "factor": 2})
    assert scaled.positions == Rotary(10000.0, 0.5, Linear(2.0))
    assert (read().block, read(use_parallel_residual=False).block) == (Parallel(2), PreNorm())
    assert (read().activation, read(hidden_act="gelu_fast").activation) == (Gelu(), GeluTanh())
    assert read().tied is False


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_act": "mish"}, "hidden_act='mish' is not known"),
        ({"rotary_pct": 0.5, "rope_parameters": {"partial_rotary_factor": 0.25}}, "differs from rotary_pct=0.5"),
        ({"rotary_pct": 0.4}, "must be even"),
        ({"architectures": ["GPTNeoXForSequenceClassification"]}, "GPTNeoXForSequenceClassification"),
        ({"sliding_window": 4}, "unknown fields.*sliding_window=4"),
    ],
)
def test_fields_that_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        read_config(config_json(**fields), "here")


def test_a_fused_matrix_of_another_shape(tmp_path):
    tiny().save_pretrained(tmp_path)
    name = "gpt_neox.layers.1.attention.query_key_value.weight"
    edited(tmp_path, lambda tensors: tensors | {name: torch.zeros(95, 32)})
    with pytest.raises(CheckpointError, match=r"query_key_value.weight must have shape \[96, 32\], got \[95, 32\]"):
        load_checkpoint(tmp_path)

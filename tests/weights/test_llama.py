"""Llama checkpoints, held against Hugging Face's LlamaForCausalLM on tiny random models."""

import json
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from pellucid.model.rotary import DynamicNTK, Linear, Llama3, LongRope, Rotary, Yarn
from pellucid.weights.llama import read_config
from pellucid.weights.loading import load_checkpoint

SIZES = {
    "vocab_size": 43,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
}
ENDS = {"bos_token_id": 1, "eos_token_id": 2}
IDS = torch.arange(80).reshape(2, 40) * 7 % 43  # reaches beyond the 16 positions of the config
PAIRS = 3  # of the head width 6

SCALINGS = {
    "linear": {"factor": 2.5},
    "dynamic": {"factor": 2.0},
    "llama3": {
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "yarn attention_factor": {"factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 0.7},
    "yarn mscale": {"factor": 4.0, "original_max_position_embeddings": 16, "mscale": 1.5, "mscale_all_dim": 0.5},
    "yarn ramp": {
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 8.0,
        "beta_slow": 2.0,
        "truncate": False,
    },
    "longrope": {
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "short_factor": [1.0, 1.1, 1.2],
        "long_factor": [1.5, 2.5, 4.0],
    },
    "longrope attention_factor": {
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0, 1.1, 1.2],
        "long_factor": [1.5, 2.5, 4.0],
        "attention_factor": 1.3,
    },
}


def tiny(dtype=torch.float32, **fields) -> LlamaForCausalLM:
    torch.manual_seed(4)
    model = LlamaForCausalLM(LlamaConfig(**(SIZES | ENDS | fields))).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model.to(dtype)


@torch.no_grad()
def assert_same_logits(hf, folder: Path, tolerance: float, ids=IDS) -> None:
    ours, theirs = load_checkpoint(folder).transformer(ids), hf(ids).logits
    assert ours.dtype == theirs.dtype
    assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()


def scaled(name: str) -> dict:
    return {"rope_parameters": {"rope_type": name.split()[0], "rope_theta": 100.0, **SCALINGS[name]}}


# Hugging Face keeps norms and rotary tables in fp32 in an fp64 model, hence 5e-6
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 5e-6)])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 1},
        {"num_key_value_heads": 4},
        {"head_dim": 10},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"rms_norm_eps": 0.1},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    ],
    ids=str,
)
def test_logits(fields, dtype, tolerance, tmp_path):
    hf = tiny(dtype, **fields)
    hf.save_pretrained(tmp_path)
    assert_same_logits(hf, tmp_path, tolerance)


@pytest.mark.parametrize("length", [12, 40])
@pytest.mark.parametrize("name", SCALINGS)
def test_arch_3_logits_of_every_scaling(name, length, tmp_path):
    """Within the original length and beyond it."""
    hf = tiny(torch.float64, **scaled(name))
    hf.save_pretrained(tmp_path)
    assert_same_logits(hf, tmp_path, 5e-6, IDS[:, :length])


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_both_spellings_of_rotary_settings(name, key, tmp_path):
    """rope_theta + rope_scaling written by hand, as older files have it, give the logits of rope_parameters."""
    hf = tiny(torch.float64, **scaled(name))
    hf.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    del values["rope_parameters"], values["dtype"]
    values |= {
        "rope_theta": 100.0,
        "rope_scaling": {key: name.split()[0], **SCALINGS[name]},
        "torch_dtype": "float64",
        "transformers_version": "4.46.0",
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert_same_logits(hf, tmp_path, 5e-6)


@settings(max_examples=5, deadline=None)
@given(
    groups=st.integers(1, 3),
    per_group=st.integers(1, 3),
    half=st.integers(1, 4),
    layers=st.integers(1, 3),
    d_ff=st.integers(1, 30),
    tied=st.booleans(),
    biases=st.tuples(st.booleans(), st.booleans()),
)
def test_logits_of_drawn_configs(groups, per_group, half, layers, d_ff, tied, biases):
    hf = tiny(
        torch.float64,
        num_attention_heads=groups * per_group,
        num_key_value_heads=groups,
        hidden_size=groups * per_group * 4,
        head_dim=2 * half,
        num_hidden_layers=layers,
        intermediate_size=d_ff,
        tie_word_embeddings=tied,
        attention_bias=biases[0],
        mlp_bias=biases[1],
    )
    with tempfile.TemporaryDirectory() as folder:
        hf.save_pretrained(folder)
        assert_same_logits(hf, Path(folder), 5e-6)


def config_json(**fields) -> dict:
    return {"model_type": "llama", **SIZES, **fields}


def positions(**fields) -> object:
    return read_config(config_json(**fields), "here")[0].positions


def test_rotary_records():
    """What each type's fields become."""
    assert positions() == Rotary(10000.0)
    assert positions(rope_theta=5e5, rope_scaling=None) == Rotary(5e5)
    assert positions(rope_theta=5e5, rope_parameters={"rope_type": "default", "rope_theta": 5e5}) == Rotary(5e5)
    expected = {
        "linear": Linear(2.5),
        "dynamic": DynamicNTK(2.0, 16),
        "llama3": Llama3(4.0, 1.0, 4.0, 16),
        "yarn": Yarn(4.0, 16),
        "yarn ramp": Yarn(4.0, 64, 8.0, 2.0, truncate=False),
        "longrope": LongRope((1.0, 1.1, 1.2), (1.5, 2.5, 4.0), 16, 4.0),
    }
    for name, scaling in expected.items():
        assert positions(**scaled(name)) == Rotary(100.0, scaling=scaling)


def test_original_length_beside_the_rotary_settings():
    fields = {"max_position_embeddings": 64, "original_max_position_embeddings": 16}
    assert positions(**fields, rope_scaling={"type": "yarn", "factor": 4}) == Rotary(1e4, scaling=Yarn(4.0, 16))


def test_a_published_config():
    """The fields of the published SmolLM2-135M-Instruct's config.json."""
    text = """{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576,
        "initializer_range": 0.041666666666666664, "intermediate_size": 1536, "is_llama_config": true,
        "max_position_embeddings": 8192, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 9,
        "num_hidden_layers": 30, "num_key_value_heads": 3, "pad_token_id": 2, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.42.3", "use_cache": true,
        "transformers.js_config": {"dtype": "q4"}, "vocab_size": 49152}"""
    config, generation = read_config(json.loads(text), "here")
    assert (config.d_head, config.tied, config.positions) == (64, True, Rotary(100000.0))
    assert generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pretraining_tp": 2}, "pretraining_tp=2 is not supported"),
        ({"sliding_window": 4096}, "sliding_window=4096"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"rope_interleaved": True}, "rope_interleaved=True"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"logit_scale": 2.0}, "unknown fields.*logit_scale=2.0"),
        ({"rope_scaling": {"type": "su", "factor": 2.0}}, "rope type 'su' is not known"),
        ({"rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 2.0}}, "differs from type='linear'"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 1}}, "unknown fields.*beta_fast=1"),
        ({"rope_scaling": [2.0]}, "rope_scaling must be a mapping"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}}, "rope_theta=500000.0 differs"),
        (
            {
                "rope_scaling": {"type": "linear", "factor": 2.0},
                "rope_parameters": {"rope_type": "linear", "factor": 4.0},
            },
            "rope_parameters and rope_scaling differ",
        ),
        (
            {
                "original_max_position_embeddings": 8,
                "rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4},
            },
            "original_max_position_embeddings=4 differs from 8",
        ),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 8}},
            "dynamic scaling counts from max_position_embeddings=16",
        ),
        (
            {"rope_scaling": {"type": "longrope", "factor": 2.0, "short_factor": [1.0], "long_factor": [1.0]}},
            "one factor per pair",
        ),
        ({"num_key_value_heads": 3}, "multiple of n_kv_heads"),
    ],
)
def test_fields_that_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        read_config(config_json(**fields), "here")

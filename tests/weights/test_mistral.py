"""Mistral checkpoints, held against Hugging Face's MistralForCausalLM on tiny random models."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MistralConfig, MistralForCausalLM

from pellucid.model.config import Causal, Window
from pellucid.weights.mistral import read_config
from twins import NEAR, SINGLE, assert_same_text_model, drawn

SIZES = {
    "vocab_size": 23,
    "hidden_size": 32,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
}


def tiny(dtype=torch.float32, **fields) -> MistralForCausalLM:
    return drawn(MistralForCausalLM(MistralConfig(**(SIZES | fields))), dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [SINGLE, NEAR])
@pytest.mark.parametrize(
    "fields",
    [
        {"sliding_window": 1},
        {"sliding_window": 4},
        {"sliding_window": 11},
        {"sliding_window": None},
        {"sliding_window": 3, "head_dim": 10, "tie_word_embeddings": True},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ],
    ids=str,
)
def test_logits(fields, dtype, tolerance):
    """Of texts longer and shorter than the window."""
    assert_same_text_model(tiny(dtype, **fields), tolerance, 23)


@settings(max_examples=5)
@given(groups=st.integers(1, 2), per_group=st.integers(1, 3), layers=st.integers(1, 3), window=st.integers(1, 12))
def test_logits_of_drawn_configs(groups, per_group, layers, window):
    heads = groups * per_group
    hf = tiny(
        torch.float64,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        hidden_size=8 * heads,
        num_hidden_layers=layers,
        sliding_window=window,
    )
    assert_same_text_model(hf, NEAR[1], 23)


def config_json(**fields) -> dict:
    return {"model_type": "mistral", **SIZES, **fields}


def test_the_window():
    """Left out it is the class's own, null means none."""

    def masks(**fields):
        return read_config(config_json(**fields), "here")[0].masks

    assert masks() == (Window(4096),)
    assert masks(sliding_window=7) == (Window(7),)
    assert masks(sliding_window=None) == (Causal(),)


def test_key_value_heads_left_out():
    fields = config_json(num_attention_heads=16)
    assert read_config(fields | {"num_key_value_heads": None}, "here")[0].n_kv_heads == 16
    del fields["num_key_value_heads"]
    assert read_config(fields, "here")[0].n_kv_heads == 8


def test_the_published_config():
    """The fields of the published Mistral-7B-v0.1's config.json."""
    fields = {
        "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0", "use_cache": True, "vocab_size": 32000,
    }  # fmt: skip
    config, generation = read_config(fields, "here")
    assert (config.masks, config.d_head, config.tied) == ((Window(4096),), 128, False)
    assert generation == {"bos_token_id": 1, "eos_token_id": 2}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sliding_window": 0}, "sliding_window must be at least 1"),
        ({"sliding_window": 10**30}, "sliding_window must be at most 2147483647, got 1000000"),
        ({"sliding_window": "4"}, "sliding_window must be a whole number, got '4'"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported"),
        ({"layer_types": ["full_attention"] * 2}, "unknown fields.*layer_types"),
    ],
)
def test_fields_that_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        read_config(config_json(**fields), "here")

"""GPT-Neo checkpoints, held against Hugging Face's GPTNeoForCausalLM on tiny random models."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPTNeoConfig, GPTNeoForCausalLM

from pellucid.model.config import Causal, Window
from pellucid.weights.gpt_neo import read_config
from pellucid.weights.loading import load_checkpoint
from twins import NEAR, SINGLE, assert_same_text_model, drawn, edited

SIZES = {
    "vocab_size": 23,
    "hidden_size": 12,
    "num_layers": 3,
    "num_heads": 3,
    "max_position_embeddings": 16,
    "window_size": 4,
    "attention_types": [[["global", "local"], 1], [["local"], 1]],
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def tiny(dtype=torch.float32, **fields) -> GPTNeoForCausalLM:
    return drawn(GPTNeoForCausalLM(GPTNeoConfig(**(SIZES | fields))), dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [SINGLE, NEAR])
@pytest.mark.parametrize(
    "fields",
    [{}, {"window_size": 1}, {"window_size": 12}, {"intermediate_size": 20, "activation_function": "relu"}],
    ids=str,
)
def test_logits(fields, dtype, tolerance):
    assert_same_text_model(tiny(dtype, **fields), tolerance, 23)


@settings(max_examples=5)
@given(
    kinds=st.lists(st.sampled_from(["global", "local"]), min_size=1, max_size=4),
    heads=st.integers(1, 3),
    window=st.integers(1, 12),
)
def test_logits_of_drawn_configs(kinds, heads, window):
    hf = tiny(
        torch.float64,
        attention_types=[[kinds, 1]],
        num_layers=len(kinds),
        num_heads=heads,
        hidden_size=4 * heads,
        window_size=window,
    )
    assert_same_text_model(hf, NEAR[1], 23)


@torch.no_grad()
def test_the_published_form(tmp_path):
    """Causal masks in the file."""
    hf = tiny()
    hf.save_pretrained(tmp_path)
    buffers = {
        f"transformer.h.{layer}.attn.attention.{name}": torch.ones(1)
        for layer in range(3)
        for name in ("bias", "masked_bias")
    }
    edited(tmp_path, lambda tensors: tensors | buffers)
    ids = torch.arange(11)[None]
    assert (load_checkpoint(tmp_path).transformer(ids) - hf(ids).logits).abs().max() <= 2e-5


def config_json(**fields) -> dict:
    return {"model_type": "gpt_neo", **SIZES, **fields}


def test_masks_are_the_shortest_cycle():
    def masks(types, layers):
        return read_config(config_json(attention_types=types, num_layers=layers, window_size=9), "here")[0].masks

    assert masks([[["global", "local"], 2]], 4) == (Causal(), Window(9))
    assert masks([[["global"], 2]], 2) == (Causal(),)
    assert masks([[["global", "local"], 1], [["global"], 1]], 3) == (Causal(), Window(9))
    assert masks([[["local"], 1], [["global"], 2]], 3) == (Window(9), Causal(), Causal())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention_types": [[["global", "local"], 2]]}, "attention_types must hold .* for 3 layers"),
        ({"attention_types": [[["global", "local"], 1]]}, "must name global or local for each of 3 layers"),
        ({"attention_types": [[["global", "banded"], 1], [["local"], 1]]}, "must name global or local"),
        ({"attention_types": [["global", 3]]}, "attention_types must hold"),
        ({"attention_types": [[["global"], 10**12]]}, "attention_types must hold"),
        ({"num_layers": 10**9, "attention_types": [[["global"], 10**9]]}, "num_layers must be at most 10000"),
        ({"attention_types": [[[], 10**9]]}, "must name global or local for each of 3 layers"),
        ({"attention_types": "local"}, "attention_types must hold"),
        ({"attention_layers": ["global"] * 3}, "attention_layers does not follow"),
        ({"rotary": True}, "unknown fields.*rotary=True"),
    ],
)
def test_fields_that_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        read_config(config_json(**fields), "here")

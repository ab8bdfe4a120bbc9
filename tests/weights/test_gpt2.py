"""GPT-2 checkpoints, held against Hugging Face's GPT2LMHeadModel on tiny random models."""

import json
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from pellucid.model.config import Gelu, GeluTanh, Relu
from pellucid.weights.errors import CheckpointError
from pellucid.weights.gpt2 import read_config
from pellucid.weights.loading import load_checkpoint

SIZES = {"vocab_size": 23, "n_positions": 16, "n_embd": 12, "n_layer": 2, "n_head": 3, "initializer_range": 0.3}
ENDS = {"bos_token_id": 0, "eos_token_id": 0}
IDS = torch.arange(22).reshape(2, 11)


def tiny(dtype=torch.float32, **fields) -> GPT2LMHeadModel:
    torch.manual_seed(3)
    model = GPT2LMHeadModel(GPT2Config(**(SIZES | ENDS | fields))).eval()
    for weight in model.parameters():  # biases and gains of a fresh model are 0 and 1, which would hide a mix-up
        torch.nn.init.normal_(weight, std=0.3)
    return model.to(dtype)


@torch.no_grad()
def assert_same_logits(hf, folder: Path, tolerance: float) -> None:
    ours, theirs = load_checkpoint(folder).transformer(IDS), hf(IDS).logits
    assert ours.dtype == theirs.dtype
    assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tie_word_embeddings": False},
        {"scale_attn_by_inverse_layer_idx": True},
        {"scale_attn_weights": False},
        {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
        {"reorder_and_upcast_attn": True},
        {"n_inner": 20},
        {"activation_function": "gelu"},
        {"activation_function": "relu"},
        {"activation_function": "gelu_pytorch_tanh"},
        {"layer_norm_epsilon": 0.1},
    ],
    ids=str,
)
def test_logits(fields, dtype, tolerance, tmp_path):
    hf = tiny(dtype, **fields)
    hf.save_pretrained(tmp_path)
    assert_same_logits(hf, tmp_path, tolerance)


@settings(max_examples=5, deadline=None)
@given(
    heads=st.integers(1, 4),
    width=st.integers(1, 4),
    layers=st.integers(1, 3),
    inner=st.none() | st.integers(1, 30),
    tied=st.booleans(),
    inverse=st.booleans(),
    activation=st.sampled_from(["gelu_new", "gelu", "relu"]),
)
def test_logits_of_drawn_configs(heads, width, layers, inner, tied, inverse, activation):
    hf = tiny(
        torch.float64,
        n_head=heads,
        n_embd=heads * width * 2,
        n_layer=layers,
        n_inner=inner,
        tie_word_embeddings=tied,
        scale_attn_by_inverse_layer_idx=inverse,
        activation_function=activation,
    )
    with tempfile.TemporaryDirectory() as folder:
        hf.save_pretrained(folder)
        assert_same_logits(hf, Path(folder), 1e-10)


def test_names_of_the_first_release(tmp_path):
    """No `transformer.`, causal buffers in the file, no lm_head: how the published gpt2 was saved."""
    hf = tiny()
    hf.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in load_file(file).items()}
    for layer in range(2):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 16, 16)
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, file)
    assert_same_logits(hf, tmp_path, 2e-5)


def config_json(**fields) -> dict:
    return {"model_type": "gpt2", **SIZES, **fields}


@pytest.mark.parametrize(
    ("name", "record"),
    [("gelu_new", GeluTanh()), ("gelu_pytorch_tanh", GeluTanh()), ("gelu", Gelu()), ("relu", Relu())],
)
def test_activations(name, record):
    assert read_config(config_json(activation_function=name), "here")[0].activation == record


def test_dropout_start_and_generation_fields():
    given_fields = config_json(embd_pdrop=0.1, attn_pdrop=0.2, resid_pdrop=0.3, eos_token_id=[5, 6], bos_token_id=4)
    config, generation = read_config(given_fields, "here")
    assert (config.dropout.embedding, config.dropout.attention, config.dropout.update) == (0.1, 0.2, 0.3)
    assert config.init.std == 0.3
    assert generation == {"bos_token_id": 4, "eos_token_id": [5, 6]}


def test_the_published_config():
    """The fields of the published gpt2's config.json."""
    text = """{"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
        "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
        "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1,
        "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
        "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257}"""
    config, _ = read_config(json.loads(text), "here")
    assert (config.d_model, config.d_ff, config.context_length, config.tied) == (768, 3072, 1024, True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"add_cross_attention": True}, "add_cross_attention=True is not supported"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder=True"),
        ({"n_ctx": 8}, "n_ctx=8"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"activation_function": "mish"}, "activation_function='mish'"),
        ({"attention_window": 4}, "unknown fields.*attention_window=4"),
        ({"architectures": ["GPT2ForTokenClassification"]}, "GPT2ForTokenClassification"),
        ({"n_layer": 10**9, "scale_attn_by_inverse_layer_idx": True}, "n_layer must be at most 10000"),
        ({"n_embd": 0}, "n_embd must be at least 1, got 0"),
        ({"n_head": 0}, "n_head must be at least 1, got 0"),
        ({"vocab_size": 2**31}, "vocab_size must be at most 2147483647, got 2147483648"),
        ({"n_layer": "2"}, "n_layer must be a whole number, got '2'"),
        ({"n_layer": True}, "n_layer must be a whole number, got True"),
        ({"layer_norm_epsilon": "small"}, "layer_norm_epsilon must be a number"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false, got 1"),
        ({"n_embd": 13}, "d_model must be a multiple of n_heads"),
    ],
)
def test_fields_that_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        read_config(config_json(**fields), "here")


def test_refusals_are_one_kind_of_error():
    with pytest.raises(CheckpointError, match=r"^here: "):
        read_config(config_json(unknown=1), "here")

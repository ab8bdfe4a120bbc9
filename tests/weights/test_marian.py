"""The 2017 form on disk, held against Hugging Face's MarianMTModel on tiny random models."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MarianConfig, MarianMTModel

from pellucid.model.config import Relu, Silu
from pellucid.weights.errors import CheckpointError
from pellucid.weights.loading import load_checkpoint
from pellucid.weights.marian import read_config, write_config
from twins import EXACT, LEFT, RIGHT, SINGLE, assert_twins, drawn, edited, opened

SIZES = {
    "vocab_size": 23,
    "d_model": 12,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 16,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 3,
    "max_position_embeddings": 16,
    "activation_function": "relu",
    "scale_embedding": True,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
    "eos_token_id": 1,
    "forced_eos_token_id": 1,
}
SOURCE = torch.arange(22).reshape(2, 11) * 7 % 23
TARGET = torch.arange(14).reshape(2, 7) * 5 % 23


def tiny(dtype=torch.float32, **fields) -> MarianMTModel:
    hf = drawn(MarianMTModel(MarianConfig(**(SIZES | fields))), dtype)
    for side in (hf.model.encoder, hf.model.decoder):  # kept in fp32 there; the formula, in the model's precision
        weight = side.embed_positions.weight
        place, half = np.arange(weight.shape[0])[:, None], np.arange(weight.shape[1] // 2)
        angle = place / 10000 ** (2 * half / weight.shape[1])
        weight.data = torch.tensor(np.concatenate((np.sin(angle), np.cos(angle)), 1), dtype=dtype)
    return hf


def assert_same_logits(hf: MarianMTModel, tolerance: float) -> None:
    """One pair of texts, a batch, and source texts padded on the right."""
    for rows, mask in ((slice(1), None), (slice(2), None), (slice(2), RIGHT)):
        assert_twins(
            hf,
            lambda t, rows=rows, mask=mask: t(TARGET[rows], source=SOURCE[rows], source_mask=mask),
            lambda hf, rows=rows, mask=mask: (
                hf(SOURCE[rows], attention_mask=mask, decoder_input_ids=TARGET[rows]).logits
            ),
            tolerance,
        )


@pytest.mark.parametrize(("dtype", "tolerance"), [SINGLE, EXACT])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"scale_embedding": False},
        {"activation_function": "gelu"},
        {"activation_function": "swish"},
        {"activation_function": "silu", "scale_embedding": False},
        {"share_encoder_decoder_embeddings": False},
        {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 29},
    ],
    ids=str,
)
def test_logits(fields, dtype, tolerance):
    assert_same_logits(tiny(dtype, **fields), tolerance)


@settings(max_examples=5)
@given(
    heads=st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4])),
    layers=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    d_ff=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    width=st.sampled_from([8, 16]),
)
def test_logits_of_drawn_configs(heads, layers, d_ff, width):
    fields = {"d_model": width}
    for name, pair in (("attention_heads", heads), ("layers", layers), ("ffn_dim", d_ff)):
        fields |= {f"encoder_{name}": pair[0], f"decoder_{name}": pair[1]}
    assert_same_logits(tiny(torch.float64, **fields), 1e-10)


@torch.no_grad()
def test_source_padding_on_the_left():
    transformer = opened(tiny(torch.float64)).transformer
    left = SOURCE.clone()
    left[1, 4:] = SOURCE[1, :7]
    ours = transformer(TARGET, source=left, source_mask=LEFT)[1]
    assert (ours - transformer(TARGET, source=SOURCE, source_mask=RIGHT)[1]).abs().max() <= 1e-12


@torch.no_grad()
def test_files_of_the_first_releases(tmp_path):
    """Every copy of the shared embedding, and the sinusoids."""
    hf = tiny()
    hf.save_pretrained(tmp_path)

    def change(tensors):
        shared = tensors["model.shared.weight"]
        copies = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
        sines = {f"model.{side}.embed_positions.weight": torch.ones(16, 12) for side in ("encoder", "decoder")}
        return tensors | dict.fromkeys(copies, shared) | sines

    edited(tmp_path, change, static_position_embeddings=True, normalize_before=False, num_hidden_layers=2)
    ours = load_checkpoint(tmp_path).transformer(TARGET, source=SOURCE)
    assert (ours - hf(SOURCE, decoder_input_ids=TARGET).logits).abs().max() <= 2e-5 * ours.abs().max()


def test_copies_that_differ(tmp_path):
    tiny().save_pretrained(tmp_path)
    edited(tmp_path, lambda tensors: tensors | {"model.encoder.embed_tokens.weight": torch.zeros(23, 12)})
    with pytest.raises(CheckpointError, match="are one weight, but the file's two copies differ"):
        load_checkpoint(tmp_path)


def config_json(**fields) -> dict:
    return {"model_type": "marian", "is_encoder_decoder": True, **SIZES, **fields}


def test_records():
    config, generation = read_config(config_json(), "here")
    assert (config.n_layers, config.encoder.n_layers, config.activation) == (3, 2, Relu())
    assert config.embedding_scale == config.encoder.embedding_scale == 12**0.5
    assert generation["decoder_start_token_id"] == 0


def test_a_published_translation_model():
    """The config.json of Helsinki-NLP/opus-mt-en-de, without its labels."""
    text = """{"activation_dropout": 0.0, "activation_function": "swish", "add_bias_logits": false,
        "add_final_layer_norm": false, "architectures": ["MarianMTModel"], "attention_dropout": 0.0,
        "bad_words_ids": [[58100]], "bos_token_id": 0, "classif_dropout": 0.0, "classifier_dropout": 0.0,
        "d_model": 512, "decoder_attention_heads": 8, "decoder_ffn_dim": 2048, "decoder_layerdrop": 0.0,
        "decoder_layers": 6, "decoder_start_token_id": 58100, "decoder_vocab_size": 58101, "dropout": 0.1,
        "encoder_attention_heads": 8, "encoder_ffn_dim": 2048, "encoder_layerdrop": 0.0, "encoder_layers": 6,
        "eos_token_id": 0, "forced_eos_token_id": 0, "gradient_checkpointing": false, "init_std": 0.02,
        "is_encoder_decoder": true, "max_length": 512, "max_position_embeddings": 512, "model_type": "marian",
        "normalize_before": false, "normalize_embedding": false, "num_beams": 6, "num_hidden_layers": 6,
        "pad_token_id": 58100, "scale_embedding": true, "share_encoder_decoder_embeddings": true,
        "static_position_embeddings": true, "transformers_version": "4.22.0.dev0", "use_cache": true,
        "vocab_size": 58101}"""
    config, generation = read_config(json.loads(text), "here")
    assert (config.activation, config.encoder.activation, config.d_ff) == (Silu(), Silu(), 2048)
    assert (generation["forced_eos_token_id"], generation["bad_words_ids"]) == (0, [[58100]])
    assert write_config(config)["activation_function"] == "silu"
    assert read_config(config_json(**write_config(config)), "here")[0] == config


def test_answers_that_begin_with_no_id_of_the_vocabulary(tmp_path):
    tiny().save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"decoder_start_token_id": 23}')
    with pytest.raises(CheckpointError, match=r"generation_config.json: decoder_start_token_id .* below 23, got 23"):
        load_checkpoint(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"decoder_start_token_id": 22}')
    assert load_checkpoint(tmp_path).generation["decoder_start_token_id"] == 22


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"activation_function": "mish"}, "activation_function='mish' is not known, only gelu, .*relu"),
        ({"normalize_before": True}, "normalize_before=True is not supported"),
        ({"normalize_embedding": True}, "normalize_embedding=True is not supported"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=False is not supported"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder=False is not supported"),
        ({"num_hidden_layers": 5}, "num_hidden_layers=5"),
        ({"d_model": 13}, "multiple of n_heads|even"),
        ({"decoder_vocab_size": 29}, "a shared embedding needs equal vocab_size"),
        ({"encoder_layerdrop": 0.5}, "encoder_layerdrop=0.5"),
    ],
)
def test_fields_that_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        read_config(config_json(**fields), "here")

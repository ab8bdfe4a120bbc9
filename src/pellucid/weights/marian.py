"""The 2017 Transformer on disk, as Marian's models are (Hugging Face's MarianMTModel): an encoder and a decoder.

Sines and cosines stand in halves, norms after the sums, every matrix has a bias, and so have the logits. The published
translation models' activation is swish (SiLU) where the paper's is ReLU.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..model.config import Bidirectional, Causal, Config, Dropout, Init, LayerNorm, PostNorm, Sinusoidal, Unembed
from .family import Family
from .fields import Fields
from .hf_config import activation_name, spread, take_activation, take_common
from .names import TOKENS, UNEMBED, Entry, Layout

ARCHITECTURES = ("MarianMTModel",)


def read_config(values: Mapping[str, Any], where: str) -> tuple[Config, dict[str, Any]]:
    """A config.json's fields as a Config, and those that belong to generation.

    Raises CheckpointError for a field that is not known, missing, of the wrong type or not supported.
    """
    fields = Fields(values, where)
    generation = take_common(fields, ARCHITECTURES, encoder_decoder=True)
    _refuse_other_forms(fields)
    size = fields.size("vocab_size", 58101)
    encoder = _encoder(fields, size)
    config = replace(
        encoder,
        vocab_size=fields.size("decoder_vocab_size", size),
        **_sizes(fields, "decoder"),
        d_head=0,
        n_kv_heads=0,
        masks=(Causal(),),
        head=Unembed(bias=True),
        encoder=encoder,
        shared_embedding=fields.flag("share_encoder_decoder_embeddings", True),
    )
    fields.close()
    return config, generation


def _encoder(fields: Fields, vocab_size: int) -> Config:
    width, rate = fields.size("d_model", 1024), fields.number("dropout", 0.1)
    sizes = _sizes(fields, "encoder")
    fields.only("num_hidden_layers", sizes["n_layers"])
    return Config(
        vocab_size=vocab_size,
        context_length=fields.size("max_position_embeddings", 1024),
        d_model=width,
        **sizes,
        positions=Sinusoidal("halves"),
        norm=LayerNorm(),
        activation=take_activation(fields, "activation_function", "gelu"),
        block=PostNorm(),
        masks=(Bidirectional(),),
        embedding_scale=width**0.5 if fields.flag("scale_embedding", False) else 1.0,
        head=None,
        dropout=Dropout(rate, fields.number("attention_dropout", 0.0), rate),
        init=Init(fields.number("init_std", 0.02)),
    )


def _sizes(fields: Fields, side: str) -> dict[str, Any]:
    return {
        "n_layers": fields.layers(f"{side}_layers", 12),
        "n_heads": fields.size(f"{side}_attention_heads", 16),
        "d_ff": fields.size(f"{side}_ffn_dim", 4096),
    }


def _refuse_other_forms(fields: Fields) -> None:
    """Take what releases say of forms that MarianMTModel does not have, and what only training reads."""
    for name in ("normalize_before", "normalize_embedding", "add_bias_logits", "add_final_layer_norm"):
        fields.only(name, False)
    fields.only("static_position_embeddings", True)
    fields.only("extra_pos_embeddings", 0)
    fields.only("tie_word_embeddings", True)
    for name in ("activation_dropout", "encoder_layerdrop", "decoder_layerdrop"):
        fields.only(name, 0)
    fields.ignore("classifier_dropout", "classif_dropout", "save_step")


def write_config(config: Config) -> dict[str, Any]:
    """The fields of config.json for a Config; the inverse of `read_config`."""
    encoder = config.encoder or config
    return {
        "architectures": ["MarianMTModel"],
        "is_encoder_decoder": True,
        "vocab_size": encoder.vocab_size,
        "decoder_vocab_size": config.vocab_size,
        "max_position_embeddings": config.context_length,
        "d_model": config.d_model,
        "encoder_layers": encoder.n_layers,
        "encoder_attention_heads": encoder.n_heads,
        "encoder_ffn_dim": encoder.d_ff,
        "decoder_layers": config.n_layers,
        "decoder_attention_heads": config.n_heads,
        "decoder_ffn_dim": config.d_ff,
        "activation_function": activation_name(config.activation),
        "scale_embedding": config.embedding_scale != 1.0,
        "share_encoder_decoder_embeddings": config.shared_embedding,
        "tie_word_embeddings": config.tied,
        "dropout": config.dropout.update,
        "attention_dropout": config.dropout.attention,
        "init_std": spread(config),
    }


def _side(ours: str, theirs: str) -> tuple[Entry, ...]:
    """The entries that the encoder's layers and the decoder's have alike."""
    return (
        Entry(f"{ours}.attention.qkv", tuple(f"{theirs}.self_attn.{letter}_proj" for letter in "qkv")),
        Entry(f"{ours}.attention.out", (f"{theirs}.self_attn.out_proj",)),
        Entry(f"{ours}.attention.norm", (f"{theirs}.self_attn_layer_norm",)),
        Entry(f"{ours}.ffn.up", (f"{theirs}.fc1",)),
        Entry(f"{ours}.ffn.down", (f"{theirs}.fc2",)),
        Entry(f"{ours}.ffn.norm", (f"{theirs}.final_layer_norm",)),
    )


_CROSS = "decoder.layers.{}.encoder_attn"
_LAYERS = (
    *_side("encoder.blocks.{}", "encoder.layers.{}"),
    *_side("blocks.{}", "decoder.layers.{}"),
    Entry("blocks.{}.cross.query", (f"{_CROSS}.q_proj",)),
    Entry("blocks.{}.cross.kv", (f"{_CROSS}.k_proj", f"{_CROSS}.v_proj")),
    Entry("blocks.{}.cross.out", (f"{_CROSS}.out_proj",)),
    Entry("blocks.{}.cross.norm", (f"{_CROSS}_layer_norm",)),
    Entry(UNEMBED, ("lm_head.weight",)),
    Entry("unembed.bias", ("final_logits_bias",), row=True),
)


def _layout(embeddings: tuple[Entry, ...], copies: tuple[tuple[str, ...], ...]) -> Layout:
    return Layout(
        "Marian",
        (*embeddings, *_LAYERS),
        prefix="model.",
        bare=("final_logits_bias", "lm_head."),
        ignored=(r"(encoder|decoder)\.embed_positions\.weight",),  # the sinusoids
        copies=copies,
    )


_DECODER, _ENCODER = "decoder.embed_tokens.weight", "encoder.embed_tokens.weight"
SHARED = _layout((Entry(TOKENS, ("shared.weight",)),), (("shared.weight", _DECODER, _ENCODER),))
APART = _layout((Entry(TOKENS, (_DECODER,)), Entry(f"encoder.{TOKENS}", (_ENCODER,))), ())


def layout(config: Config) -> Layout:
    """One table where both sides share their embeddings, another where they do not."""
    return SHARED if config.shared_embedding else APART


FAMILY = Family("marian", ARCHITECTURES, read_config, write_config, layout)

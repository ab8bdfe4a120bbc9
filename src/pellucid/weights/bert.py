"""BERT on disk (Devlin et al. 2019; the config and names of Hugging Face's BertModel and its pre-training heads).

A file may hold more than the architecture its config.json names: the published bert-base-uncased calls itself
BertForMaskedLM and holds the pooler and the next-sentence head too. What it holds is loaded.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ..model.config import Bidirectional, Config, Dropout, Init, LayerNorm, MaskedLanguage, PostNorm
from .family import Family
from .fields import Fields
from .hf_config import activation_name, spread, take_activation, take_common
from .names import TOKENS, UNEMBED, Entry, Layout

ARCHITECTURES = ("BertForPreTraining", "BertForMaskedLM", "BertForNextSentencePrediction", "BertModel")
_POOLED = ("BertForPreTraining", "BertForNextSentencePrediction")
_PREDICTING = ("BertForPreTraining", "BertForMaskedLM")


def read_config(values: Mapping[str, Any], where: str) -> tuple[Config, dict[str, Any]]:
    """A config.json's fields as a Config with the heads that its architecture must have, and those of generation.

    Raises CheckpointError for a field that is not known, missing, of the wrong type or not supported.
    """
    named = values.get("architectures") or ["BertModel"]
    kind = named[0] if isinstance(named, list) else named
    fields = Fields(values, where)
    fields.only("is_decoder", False)
    generation = take_common(fields, ARCHITECTURES)
    for name in ("fc_size_per_head", "num_attention_heads", "num_fc_layers", "size_per_head", "type"):
        fields.ignore(f"pooler_{name}")  # of the multilingual releases; no release of the model reads them
    fields.ignore("directionality", "classifier_dropout")
    fields.only("position_embedding_type", "absolute")
    fields.only("tie_word_embeddings", True)
    rate = fields.number("hidden_dropout_prob", 0.1)
    config = Config(
        vocab_size=fields.size("vocab_size", 30522),
        context_length=fields.size("max_position_embeddings", 512),
        n_layers=fields.layers("num_hidden_layers", 12),
        d_model=fields.size("hidden_size", 768),
        n_heads=fields.size("num_attention_heads", 12),
        d_ff=fields.size("intermediate_size", 3072),
        norm=LayerNorm(fields.number("layer_norm_eps", 1e-12)),
        activation=take_activation(fields, "hidden_act", "gelu"),
        block=PostNorm(),
        masks=(Bidirectional(),),
        n_token_types=fields.whole("type_vocab_size", 2),
        embedding_norm=True,
        head=MaskedLanguage() if kind in _PREDICTING else None,
        pooler=kind in _POOLED,
        next_sentence=kind in _POOLED,
        dropout=Dropout(rate, fields.number("attention_probs_dropout_prob", 0.1), rate),
        init=Init(fields.number("initializer_range", 0.02)),
    )
    fields.close()
    return config, generation


def settle(config: Config, names: Collection[str]) -> Config:
    """The config with the heads that the file holds beside those its architecture must have."""
    next_sentence = config.next_sentence or "cls.seq_relationship.weight" in names
    predicts = any(name.startswith("cls.predictions.") for name in names)
    return replace(
        config,
        head=MaskedLanguage() if predicts else config.head,
        pooler=config.pooler or next_sentence or "pooler.dense.weight" in names,
        next_sentence=next_sentence,
    )


def write_config(config: Config) -> dict[str, Any]:
    """The fields of config.json for a Config; the inverse of `read_config` and `settle`."""
    predicts = isinstance(config.head, MaskedLanguage)
    kinds = {(True, True): 0, (True, False): 1, (False, True): 2, (False, False): 3}
    return {
        "architectures": [ARCHITECTURES[kinds[predicts, config.next_sentence]]],
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context_length,
        "num_hidden_layers": config.n_layers,
        "hidden_size": config.d_model,
        "num_attention_heads": config.n_heads,
        "intermediate_size": config.d_ff,
        "layer_norm_eps": config.norm.eps,
        "hidden_act": activation_name(config.activation),
        "position_embedding_type": "absolute",
        "type_vocab_size": config.n_token_types,
        "hidden_dropout_prob": config.dropout.update,
        "attention_probs_dropout_prob": config.dropout.attention,
        "initializer_range": spread(config),
    }


_LAYER = "encoder.layer.{}"
_ATTENTION = f"{_LAYER}.attention"
LAYOUT = Layout(
    "BERT",
    (
        Entry(TOKENS, ("embeddings.word_embeddings.weight",)),
        Entry("embed.position.weight", ("embeddings.position_embeddings.weight",)),
        Entry("embed.types.weight", ("embeddings.token_type_embeddings.weight",)),
        Entry("embed.norm", ("embeddings.LayerNorm",)),
        Entry("blocks.{}.attention.qkv", tuple(f"{_ATTENTION}.self.{name}" for name in ("query", "key", "value"))),
        Entry("blocks.{}.attention.out", (f"{_ATTENTION}.output.dense",)),
        Entry("blocks.{}.attention.norm", (f"{_ATTENTION}.output.LayerNorm",)),
        Entry("blocks.{}.ffn.up", (f"{_LAYER}.intermediate.dense",)),
        Entry("blocks.{}.ffn.down", (f"{_LAYER}.output.dense",)),
        Entry("blocks.{}.ffn.norm", (f"{_LAYER}.output.LayerNorm",)),
        Entry("pooler", ("pooler.dense",)),
        Entry("head.dense", ("cls.predictions.transform.dense",)),
        Entry("head.norm", ("cls.predictions.transform.LayerNorm",)),
        Entry(UNEMBED, ("cls.predictions.decoder.weight",)),
        Entry("unembed.bias", ("cls.predictions.bias",)),
        Entry("next_sentence", ("cls.seq_relationship",)),
    ),
    prefix="bert.",
    bare=("cls.",),
    ignored=(r"embeddings\.(position_ids|token_type_ids)",),
    renamed=((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias")),
    copies=(("cls.predictions.bias", "cls.predictions.decoder.bias"),),
)


def layout(config: Config) -> Layout:
    """The one table that there is."""
    return LAYOUT


FAMILY = Family("bert", ARCHITECTURES, read_config, write_config, layout, settle)

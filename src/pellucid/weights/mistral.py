"""Mistral on disk (Jiang et al. 2023; the config of Hugging Face's MistralForCausalLM): LLaMA's names, and a window."""

from collections.abc import Mapping
from typing import Any

from ..model.config import Causal, Config, Dropout, Init, Mask, RMSNorm, SwiGLU, Window
from . import llama
from .family import Family
from .fields import Fields
from .hf_config import spread, take_common
from .rope_config import rope_fields, take_rotary

ARCHITECTURES = ("MistralForCausalLM", "MistralModel")


def read_config(values: Mapping[str, Any], where: str) -> tuple[Config, dict[str, Any]]:
    """A config.json's fields as a Config, and those that belong to generation.

    A `sliding_window` that is null means none; one that is left out means the class's own 4096. Raises CheckpointError
    for a field that is not known, missing, of the wrong type or not supported.
    """
    fields = Fields(values, where)
    generation = take_common(fields, ARCHITECTURES)
    fields.only("hidden_act", "silu", "swish")
    context_length = fields.size("max_position_embeddings", 131072)
    heads = fields.size("num_attention_heads", 32)
    config = Config(
        vocab_size=fields.size("vocab_size", 32000),
        context_length=context_length,
        n_layers=fields.layers("num_hidden_layers", 32),
        d_model=fields.size("hidden_size", 4096),
        n_heads=heads,
        n_kv_heads=fields.size("num_key_value_heads", heads if "num_key_value_heads" in values else 8),
        d_head=fields.whole("head_dim", 0),
        d_ff=fields.size("intermediate_size", 14336),
        positions=take_rotary(fields, context_length),
        norm=RMSNorm(fields.number("rms_norm_eps", 1e-6)),
        activation=SwiGLU(),
        masks=(_mask(fields, values),),
        qkv_bias=False,
        out_bias=False,
        ffn_bias=False,
        tied=fields.flag("tie_word_embeddings", False),
        dropout=Dropout(attention=fields.number("attention_dropout", 0.0)),
        init=Init(fields.number("initializer_range", 0.02)),
    )
    fields.close()
    return config, generation


def _mask(fields: Fields, values: Mapping[str, Any]) -> Mask:
    if "sliding_window" in values and "sliding_window" not in fields:
        fields.ignore("sliding_window")
        return Causal()
    return Window(fields.size("sliding_window", 4096))


def write_config(config: Config) -> dict[str, Any]:
    """The fields of config.json for a Config; the inverse of `read_config`."""
    mask = config.mask(0)
    return {
        "architectures": ["MistralForCausalLM"],
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context_length,
        "num_hidden_layers": config.n_layers,
        "hidden_size": config.d_model,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.d_head,
        "intermediate_size": config.d_ff,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm.eps,
        "sliding_window": mask.width if isinstance(mask, Window) else None,
        "tie_word_embeddings": config.tied,
        "attention_dropout": config.dropout.attention,
        "initializer_range": spread(config),
        **rope_fields(config),
    }


FAMILY = Family("mistral", ARCHITECTURES, read_config, write_config, llama.layout)

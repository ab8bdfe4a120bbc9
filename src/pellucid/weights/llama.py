"""LLaMA on disk (Touvron et al. 2023; the config and names of Hugging Face's LlamaForCausalLM).

Rows of queries and keys stand for half-split rotation already; queries, keys and values are stacked into one matrix.
"""

from collections.abc import Mapping
from typing import Any

from ..model.config import Config, Dropout, Init, RMSNorm, SwiGLU
from .family import Family
from .fields import Fields
from .hf_config import spread, take_common
from .names import TOKENS, UNEMBED, Entry, Layout
from .rope_config import rope_fields, take_rotary

ARCHITECTURES = ("LlamaForCausalLM", "LlamaModel", "LLaMAForCausalLM")


def read_config(values: Mapping[str, Any], where: str) -> tuple[Config, dict[str, Any]]:
    """A config.json's fields as a Config, and those that belong to generation.

    Raises CheckpointError for a field that is not known, missing, of the wrong type or not supported.
    """
    fields = Fields(values, where)
    generation = take_common(fields, ARCHITECTURES)
    fields.ignore("is_llama_config")
    fields.only("pretraining_tp", 1)
    fields.only("hidden_act", "silu", "swish")
    fields.only("sliding_window")
    context_length = fields.size("max_position_embeddings", 2048)
    fields.only("max_sequence_length", context_length)
    bias, heads = fields.flag("attention_bias", False), fields.size("num_attention_heads", 32)
    width = fields.size("hidden_size", 4096)
    config = Config(
        vocab_size=fields.size("vocab_size", 32000),
        context_length=context_length,
        n_layers=fields.layers("num_hidden_layers", 32),
        d_model=width,
        n_heads=heads,
        n_kv_heads=fields.size("num_key_value_heads", heads),
        d_head=fields.whole("head_dim") if "head_dim" in fields else 0,
        d_ff=fields.size("intermediate_size", 11008),
        positions=take_rotary(fields, context_length),
        norm=RMSNorm(fields.number("rms_norm_eps", 1e-6)),
        activation=SwiGLU(),
        qkv_bias=bias,
        out_bias=bias,
        ffn_bias=fields.flag("mlp_bias", False),
        tied=fields.flag("tie_word_embeddings", False),
        dropout=Dropout(attention=fields.number("attention_dropout", 0.0)),
        init=Init(fields.number("initializer_range", 0.02)),
    )
    fields.ignore("head_dim")
    fields.close()
    return config, generation


def write_config(config: Config) -> dict[str, Any]:
    """The fields of config.json for a Config; the inverse of `read_config`."""
    return {
        "architectures": ["LlamaForCausalLM"],
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
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.ffn_bias,
        "tie_word_embeddings": config.tied,
        "attention_dropout": config.dropout.attention,
        "initializer_range": spread(config),
        **rope_fields(config),
    }


_ATTENTION, _FFN = "layers.{}.self_attn", "layers.{}.mlp"
LAYOUT = Layout(
    "Llama",
    (
        Entry(TOKENS, ("embed_tokens.weight",)),
        Entry("blocks.{}.attention.norm.weight", ("layers.{}.input_layernorm.weight",)),
        Entry("blocks.{}.attention.qkv", tuple(f"{_ATTENTION}.{letter}_proj" for letter in "qkv")),
        Entry("blocks.{}.attention.out", (f"{_ATTENTION}.o_proj",)),
        Entry("blocks.{}.ffn.norm.weight", ("layers.{}.post_attention_layernorm.weight",)),
        Entry("blocks.{}.ffn.gate", (f"{_FFN}.gate_proj",)),
        Entry("blocks.{}.ffn.up", (f"{_FFN}.up_proj",)),
        Entry("blocks.{}.ffn.down", (f"{_FFN}.down_proj",)),
        Entry("final_norm.weight", ("norm.weight",)),
        Entry(UNEMBED, ("lm_head.weight",)),
    ),
    prefix="model.",
    bare=("lm_head.weight",),
    ignored=(r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
)


def layout(config: Config) -> Layout:
    """The one table that there is."""
    return LAYOUT


FAMILY = Family("llama", ARCHITECTURES, read_config, write_config, layout)

"""GPT-NeoX on disk (Black et al. 2022), which Pythia is (Biderman et al. 2023): Hugging Face's GPTNeoXForCausalLM.

The rows of query_key_value go head by head: a head's query, key and value, then the next head's.
"""

from collections.abc import Mapping
from typing import Any

from ..model.config import Config, Dropout, Init, LayerNorm, Parallel, PreNorm
from .family import Family
from .fields import Fields
from .hf_config import activation_name, spread, take_activation, take_common
from .names import TOKENS, UNEMBED, Entry, Layout
from .order import by_head
from .rope_config import RopeKeys, rope_fields, take_rotary

ARCHITECTURES = ("GPTNeoXForCausalLM", "GPTNeoXModel")
_ROPE = RopeKeys("rotary_emb_base", "rotary_pct", usual=0.25, partial=True)


def read_config(values: Mapping[str, Any], where: str) -> tuple[Config, dict[str, Any]]:
    """A config.json's fields as a Config, and those that belong to generation.

    Raises CheckpointError for a field that is not known, missing, of the wrong type or not supported.
    """
    fields = Fields(values, where)
    generation = take_common(fields, ARCHITECTURES)
    fields.ignore("classifier_dropout")  # of a head that GPTNeoXForCausalLM does not have
    context_length, bias = fields.size("max_position_embeddings", 2048), fields.flag("attention_bias", True)
    rate = fields.number("hidden_dropout", 0.0)
    config = Config(
        vocab_size=fields.size("vocab_size", 50432),
        context_length=context_length,
        n_layers=fields.layers("num_hidden_layers", 44),
        d_model=fields.size("hidden_size", 6144),
        n_heads=fields.size("num_attention_heads", 64),
        d_ff=fields.size("intermediate_size", 24576),
        positions=take_rotary(fields, context_length, _ROPE),
        norm=LayerNorm(fields.number("layer_norm_eps", 1e-5)),
        activation=take_activation(fields, "hidden_act", "gelu"),
        block=Parallel(2) if fields.flag("use_parallel_residual", True) else PreNorm(),
        qkv_bias=bias,
        out_bias=bias,
        tied=fields.flag("tie_word_embeddings", False),
        dropout=Dropout(rate, fields.number("attention_dropout", 0.0), rate),
        init=Init(fields.number("initializer_range", 0.02)),
    )
    fields.close()
    return config, generation


def write_config(config: Config) -> dict[str, Any]:
    """The fields of config.json for a Config; the inverse of `read_config`."""
    return {
        "architectures": ["GPTNeoXForCausalLM"],
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context_length,
        "num_hidden_layers": config.n_layers,
        "hidden_size": config.d_model,
        "num_attention_heads": config.n_heads,
        "intermediate_size": config.d_ff,
        "hidden_act": activation_name(config.activation),
        "layer_norm_eps": config.norm.eps,
        "use_parallel_residual": isinstance(config.block, Parallel),
        "attention_bias": config.qkv_bias,
        "tie_word_embeddings": config.tied,
        "hidden_dropout": config.dropout.update,
        "attention_dropout": config.dropout.attention,
        "initializer_range": spread(config),
        **rope_fields(config, _ROPE),
    }


LAYOUT = Layout(
    "GPT-NeoX",
    (
        Entry(TOKENS, ("embed_in.weight",)),
        Entry("blocks.{}.attention.norm", ("layers.{}.input_layernorm",)),
        Entry("blocks.{}.attention.qkv", ("layers.{}.attention.query_key_value",), order=by_head),
        Entry("blocks.{}.attention.out", ("layers.{}.attention.dense",)),
        Entry("blocks.{}.ffn.norm", ("layers.{}.post_attention_layernorm",)),
        Entry("blocks.{}.ffn.up", ("layers.{}.mlp.dense_h_to_4h",)),
        Entry("blocks.{}.ffn.down", ("layers.{}.mlp.dense_4h_to_h",)),
        Entry("final_norm", ("final_layer_norm",)),
        Entry(UNEMBED, ("embed_out.weight",)),
    ),
    prefix="gpt_neox.",
    bare=("embed_out.",),
    ignored=(r"layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)", r"rotary_emb\.inv_freq"),
    renamed=((r"^lm_head\.", "embed_out."),),
)


def layout(config: Config) -> Layout:
    """The one table that there is."""
    return LAYOUT


FAMILY = Family("gpt_neox", ARCHITECTURES, read_config, write_config, layout)

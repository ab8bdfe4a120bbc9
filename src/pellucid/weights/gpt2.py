"""GPT-2 on disk (Radford et al. 2019; the config and names of Hugging Face's GPT2LMHeadModel).

Matrices are stored [in, out], the transpose of ours; c_attn holds queries, keys and values side by side already.
"""

from collections.abc import Mapping
from typing import Any

from ..model.config import Config, Dropout, Init, LayerNorm, Learned
from .family import Family
from .fields import Fields
from .hf_config import activation_name, spread, take_activation, take_common
from .names import TOKENS, UNEMBED, Entry, Layout

ARCHITECTURES = ("GPT2LMHeadModel", "GPT2Model")


def read_config(values: Mapping[str, Any], where: str) -> tuple[Config, dict[str, Any]]:
    """A config.json's fields as a Config, and those that belong to generation.

    `reorder_and_upcast_attn` is taken and changes nothing: scores are computed in at least fp32 where it matters.
    Raises CheckpointError for a field that is not known, missing, of the wrong type or not supported.
    """
    fields = Fields(values, where)
    generation = take_common(fields, ARCHITECTURES)
    fields.ignore("reorder_and_upcast_attn", "predict_special_tokens")
    fields.only("n_special", 0)
    for name in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout"):
        fields.ignore(f"summary_{name}")  # of a head that GPT2LMHeadModel does not have
    context_length = fields.size("n_positions", 1024)
    fields.only("n_ctx", context_length)
    layers, width, heads = fields.layers("n_layer", 12), fields.size("n_embd", 768), fields.size("n_head", 12)
    config = Config(
        vocab_size=fields.size("vocab_size", 50257),
        context_length=context_length,
        n_layers=layers,
        d_model=width,
        n_heads=heads,
        d_ff=fields.size("n_inner", 4 * width),
        positions=Learned(),
        norm=LayerNorm(fields.number("layer_norm_epsilon", 1e-5)),
        activation=take_activation(fields, "activation_function", "gelu_new"),
        tied=fields.flag("tie_word_embeddings", True),
        attention_scales=_scales(fields, layers, width / max(heads, 1)),
        dropout=Dropout(*(fields.number(f"{place}_pdrop", 0.1) for place in ("embd", "attn", "resid"))),
        init=Init(fields.number("initializer_range", 0.02)),
    )
    fields.close()
    return config, generation


def write_config(config: Config) -> dict[str, Any]:
    """The fields of config.json for a Config; the inverse of `read_config`."""
    by_weight, by_layer = _scale_flags(config)
    return {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.vocab_size,
        "n_positions": config.context_length,
        "n_ctx": config.context_length,
        "n_layer": config.n_layers,
        "n_embd": config.d_model,
        "n_head": config.n_heads,
        "n_inner": config.d_ff,
        "layer_norm_epsilon": config.norm.eps,
        "activation_function": activation_name(config.activation),
        "tie_word_embeddings": config.tied,
        "scale_attn_weights": by_weight,
        "scale_attn_by_inverse_layer_idx": by_layer,
        "embd_pdrop": config.dropout.embedding,
        "attn_pdrop": config.dropout.attention,
        "resid_pdrop": config.dropout.update,
        "initializer_range": spread(config),
    }


def _scale_flags(config: Config) -> tuple[bool, bool]:
    """scale_attn_weights and scale_attn_by_inverse_layer_idx, whichever give the config's scales; else the usual."""
    wanted = [config.attention_scale(layer) for layer in range(config.n_layers)]
    for by_weight in (True, False):
        scale = config.d_head**-0.5 if by_weight else 1.0
        for by_layer in (False, True):
            if wanted == [scale / (layer + 1 if by_layer else 1) for layer in range(config.n_layers)]:
                return by_weight, by_layer
    return True, False


def _scales(fields: Fields, layers: int, d_head: float) -> tuple[float, ...]:
    scale = d_head**-0.5 if fields.flag("scale_attn_weights", True) else 1.0
    if fields.flag("scale_attn_by_inverse_layer_idx", False):
        return tuple(scale / (layer + 1) for layer in range(layers))
    return () if scale != 1.0 else (1.0,)


LAYOUT = Layout(
    "GPT-2",
    (
        Entry(TOKENS, ("wte.weight",)),
        Entry("embed.position.weight", ("wpe.weight",)),
        Entry("blocks.{}.attention.norm", ("h.{}.ln_1",)),
        Entry("blocks.{}.attention.qkv", ("h.{}.attn.c_attn",), transposed=True),
        Entry("blocks.{}.attention.out", ("h.{}.attn.c_proj",), transposed=True),
        Entry("blocks.{}.ffn.norm", ("h.{}.ln_2",)),
        Entry("blocks.{}.ffn.up", ("h.{}.mlp.c_fc",), transposed=True),
        Entry("blocks.{}.ffn.down", ("h.{}.mlp.c_proj",), transposed=True),
        Entry("final_norm", ("ln_f",)),
        Entry(UNEMBED, ("lm_head.weight",)),
    ),
    prefix="transformer.",
    bare=("lm_head.weight",),
    ignored=(r"h\.\d+\.attn\.(masked_)?bias",),
)


def layout(config: Config) -> Layout:
    """The one table that there is."""
    return LAYOUT


FAMILY = Family("gpt2", ARCHITECTURES, read_config, write_config, layout)

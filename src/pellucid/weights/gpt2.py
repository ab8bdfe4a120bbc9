"""GPT-2 on disk (Radford et al. 2019; the config and names of Hugging Face's GPT2LMHeadModel).

Matrices are stored [in, out], the transpose of ours; c_attn holds queries, keys and values side by side already.
"""

from collections.abc import Mapping
from typing import Any

from ..model.config import Activation, Config, Dropout, Gelu, GeluTanh, Init, LayerNorm, Learned, Relu
from .fields import Fields
from .hf_config import take_common
from .names import TOKENS, UNEMBED, Entry, Layout

ARCHITECTURES = ("GPT2LMHeadModel", "GPT2Model")
_ACTIVATIONS: Mapping[str, Activation] = {
    "gelu_new": GeluTanh(),
    "gelu_pytorch_tanh": GeluTanh(),
    "gelu": Gelu(),
    "relu": Relu(),
}


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
    context_length = fields.whole("n_positions", 1024)
    fields.only("n_ctx", context_length)
    layers, width, heads = fields.whole("n_layer", 12), fields.whole("n_embd", 768), fields.whole("n_head", 12)
    config = Config(
        vocab_size=fields.whole("vocab_size", 50257),
        context_length=context_length,
        n_layers=layers,
        d_model=width,
        n_heads=heads,
        d_ff=fields.whole("n_inner", 4 * width),
        positions=Learned(),
        norm=LayerNorm(fields.number("layer_norm_epsilon", 1e-5)),
        activation=_activation(fields),
        tied=fields.flag("tie_word_embeddings", True),
        attention_scales=_scales(fields, layers, width / max(heads, 1)),
        dropout=Dropout(*(fields.number(f"{place}_pdrop", 0.1) for place in ("embd", "attn", "resid"))),
        init=Init(fields.number("initializer_range", 0.02)),
    )
    fields.close()
    return config, generation


def _activation(fields: Fields) -> Activation:
    name = fields.text("activation_function", "gelu_new")
    if name not in _ACTIVATIONS:
        raise fields.error(f"activation_function={name!r} is not known, only {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _scales(fields: Fields, layers: int, d_head: float) -> tuple[float, ...]:
    scale = d_head**-0.5 if fields.flag("scale_attn_weights", True) else 1.0
    if fields.flag("scale_attn_by_inverse_layer_idx", False):
        return tuple(scale / (layer + 1) for layer in range(layers))
    return () if scale != 1.0 else (1.0,)


def _pair(ours: str, theirs: str, transposed: bool = False) -> tuple[Entry, Entry]:
    return Entry(f"{ours}.weight", (f"{theirs}.weight",), transposed), Entry(f"{ours}.bias", (f"{theirs}.bias",))


LAYOUT = Layout(
    "GPT-2",
    (
        Entry(TOKENS, ("wte.weight",)),
        Entry("embed.position.weight", ("wpe.weight",)),
        *_pair("blocks.{}.attention.norm", "h.{}.ln_1"),
        *_pair("blocks.{}.attention.qkv", "h.{}.attn.c_attn", transposed=True),
        *_pair("blocks.{}.attention.out", "h.{}.attn.c_proj", transposed=True),
        *_pair("blocks.{}.ffn.norm", "h.{}.ln_2"),
        *_pair("blocks.{}.ffn.up", "h.{}.mlp.c_fc", transposed=True),
        *_pair("blocks.{}.ffn.down", "h.{}.mlp.c_proj", transposed=True),
        *_pair("final_norm", "ln_f"),
        Entry(UNEMBED, ("lm_head.weight",)),
    ),
    prefix="transformer.",
    bare=("lm_head.weight",),
    ignored=(r"h\.\d+\.attn\.(masked_)?bias",),
)

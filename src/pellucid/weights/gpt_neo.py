"""GPT-Neo on disk (Black et al. 2021; Hugging Face's GPTNeoForCausalLM), the public model with GPT-3's local bands.

Scores are not scaled, queries, keys and values have no biases, and matrices are stored [out, in].
"""

from collections.abc import Mapping
from typing import Any

from ..model.config import Causal, Config, Dropout, Init, LayerNorm, Mask, Window
from .family import Family
from .fields import Fields
from .files import shown
from .hf_config import activation_name, spread, take_activation, take_common
from .names import TOKENS, UNEMBED, Entry, Layout

ARCHITECTURES = ("GPTNeoForCausalLM", "GPTNeoModel")


def read_config(values: Mapping[str, Any], where: str) -> tuple[Config, dict[str, Any]]:
    """A config.json's fields as a Config, and those that belong to generation.

    Raises CheckpointError for a field that is not known, missing, of the wrong type or not supported.
    """
    fields = Fields(values, where)
    generation = take_common(fields, ARCHITECTURES)
    fields.ignore("classifier_dropout")
    for name in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout"):
        fields.ignore(f"summary_{name}")  # of heads that GPTNeoForCausalLM does not have
    layers, width = fields.layers("num_layers", 24), fields.size("hidden_size", 2048)
    config = Config(
        vocab_size=fields.size("vocab_size", 50257),
        context_length=fields.size("max_position_embeddings", 2048),
        n_layers=layers,
        d_model=width,
        n_heads=fields.size("num_heads", 16),
        d_ff=fields.size("intermediate_size", 4 * width),
        norm=LayerNorm(fields.number("layer_norm_epsilon", 1e-5)),
        activation=take_activation(fields, "activation_function", "gelu_new"),
        masks=_masks(fields, layers),
        qkv_bias=False,
        tied=fields.flag("tie_word_embeddings", True),
        attention_scales=(1.0,),
        dropout=Dropout(*(fields.number(f"{place}_dropout", 0.0) for place in ("embed", "attention", "resid"))),
        init=Init(fields.number("initializer_range", 0.02)),
    )
    fields.close()
    return config, generation


def _masks(fields: Fields, layers: int) -> tuple[Mask, ...]:
    """The shortest cycle of masks that gives each layer its attention_types ([[kinds, how many times], ...])."""
    kinds: Mapping[object, Mask] = {"global": Causal(), "local": Window(fields.size("window_size", 256))}
    stated = fields.collect("attention_types", "attention_layers")
    runs = stated.get("attention_types") or [[["global", "local"], 12]]
    names: list[object] = []
    for run in runs if isinstance(runs, list) else [runs]:
        match run:
            case [list(cycle), int(times)] if times >= 0 and len(names) + len(cycle) * times <= layers:
                names += cycle * times
            case _:
                raise fields.error(
                    f"attention_types must hold [[kinds, how many times], ...] for {layers} layers, got {shown([run])}"
                )
    if len(names) != layers or not all(isinstance(name, str) and name in kinds for name in names):
        raise fields.error(
            f"attention_types must name global or local for each of {layers} layers, got {shown(names, most=12)}"
        )
    if stated.get("attention_layers") not in (None, names):
        raise fields.error("attention_layers does not follow from attention_types")
    masks = tuple(kinds[name] for name in names)
    period = next(n for n in range(1, layers + 1) if masks[n:] == masks[: layers - n])
    return masks[:period]


def write_config(config: Config) -> dict[str, Any]:
    """The fields of config.json for a Config; the inverse of `read_config`."""
    masks = [config.mask(layer) for layer in range(config.n_layers)]
    names = ["local" if isinstance(mask, Window) else "global" for mask in masks]
    return {
        "architectures": ["GPTNeoForCausalLM"],
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context_length,
        "num_layers": config.n_layers,
        "hidden_size": config.d_model,
        "num_heads": config.n_heads,
        "intermediate_size": config.d_ff,
        "layer_norm_epsilon": config.norm.eps,
        "activation_function": activation_name(config.activation),
        "attention_types": [[names, 1]],
        "attention_layers": names,
        "window_size": next((mask.width for mask in masks if isinstance(mask, Window)), 256),
        "tie_word_embeddings": config.tied,
        "embed_dropout": config.dropout.embedding,
        "attention_dropout": config.dropout.attention,
        "resid_dropout": config.dropout.update,
        "initializer_range": spread(config),
    }


_ATTENTION = "h.{}.attn.attention"
LAYOUT = Layout(
    "GPT-Neo",
    (
        Entry(TOKENS, ("wte.weight",)),
        Entry("embed.position.weight", ("wpe.weight",)),
        Entry("blocks.{}.attention.norm", ("h.{}.ln_1",)),
        Entry("blocks.{}.attention.qkv.weight", tuple(f"{_ATTENTION}.{letter}_proj.weight" for letter in "qkv")),
        Entry("blocks.{}.attention.out", (f"{_ATTENTION}.out_proj",)),
        Entry("blocks.{}.ffn.norm", ("h.{}.ln_2",)),
        Entry("blocks.{}.ffn.up", ("h.{}.mlp.c_fc",)),
        Entry("blocks.{}.ffn.down", ("h.{}.mlp.c_proj",)),
        Entry("final_norm", ("ln_f",)),
        Entry(UNEMBED, ("lm_head.weight",)),
    ),
    prefix="transformer.",
    bare=("lm_head.",),
    ignored=(r"h\.\d+\.attn\.attention\.(masked_)?bias",),
)


def layout(config: Config) -> Layout:
    """The one table that there is."""
    return LAYOUT


FAMILY = Family("gpt_neo", ARCHITECTURES, read_config, write_config, layout)

"""What TransformerLens and Hugging Face call the values that are sites here, as data.

TransformerLens's names are those of its `run_with_cache` (4.3), Hugging Face's those of the modules whose output the
value is (5.x). In the tables {} is a layer and {+} the one after it.
"""

import re
from collections.abc import Mapping, Sequence

from ..model.config import Config, PostNorm, Rotary, SwiGLU
from ..model.sites import sites
from ..views.table import Table
from .errors import SiteError

# Ours, theirs, and what they keep of it: "1/" the reciprocal with an axis more, "flat" its last two axes as one.
Line = tuple[str, str, str]
TRANSFORMER_LENS: tuple[Line, ...] = (
    ("embed.token", "hook_embed", ""),
    ("embed.position", "hook_pos_embed", ""),
    ("{}.stream", "blocks.{}.hook_resid_pre", ""),
    ("{}.attention.input.scale", "blocks.{}.ln1.hook_scale", "1/"),
    ("{}.attention.input", "blocks.{}.ln1.hook_out", ""),
    ("{}.attention.query", "blocks.{}.attn.hook_q", ""),
    ("{}.attention.key", "blocks.{}.attn.hook_k", ""),
    ("{}.attention.value", "blocks.{}.attn.hook_v", ""),
    ("{}.attention.scores", "blocks.{}.attn.hook_attn_scores", ""),
    ("{}.attention.pattern", "blocks.{}.attn.hook_pattern", ""),
    ("{}.attention.heads", "blocks.{}.attn.hook_z", ""),
    ("{}.attention.writes", "blocks.{}.attn.hook_result", ""),
    ("{}.attention.update", "blocks.{}.hook_attn_out", ""),
    ("{}.stream.mid", "blocks.{}.hook_resid_mid", ""),
    ("{}.ffn.input.scale", "blocks.{}.ln2.hook_scale", "1/"),
    ("{}.ffn.input", "blocks.{}.ln2.hook_out", ""),
    ("{}.ffn.up", "blocks.{}.mlp.hook_pre", ""),
    ("{}.ffn.neurons", "blocks.{}.mlp.hook_post", ""),
    ("{}.ffn.update", "blocks.{}.hook_mlp_out", ""),
    ("{+}.stream", "blocks.{}.hook_resid_post", ""),
    ("final.scale", "ln_final.hook_scale", "1/"),
    ("final.normed", "ln_final.hook_out", ""),
    ("logits", "unembed.hook_out", ""),
)
# What stands in another place there where queries are rotated, and where the feed-forward layer is gated.
ROTATED = {"attn.hook_q": "attn.hook_rot_q", "attn.hook_k": "attn.hook_rot_k"}
GATED = {"mlp.hook_pre": "mlp.hook_pre_linear"}
ONE_NORM: Line = ("{}.norm.scale", "blocks.{}.ln1.hook_scale", "1/")
GATE: Line = ("{}.ffn.gate", "blocks.{}.mlp.hook_pre", "")

HUGGING_FACE: dict[str, tuple[Line, ...]] = {
    "gpt2": (
        ("embed.token", "transformer.wte", ""),
        ("embed.position", "transformer.wpe", ""),
        ("{}.attention.input", "transformer.h.{}.ln_1", ""),
        ("{}.attention.update", "transformer.h.{}.attn.c_proj", ""),
        ("{}.ffn.input", "transformer.h.{}.ln_2", ""),
        ("{}.ffn.up", "transformer.h.{}.mlp.c_fc", ""),
        ("{}.ffn.neurons", "transformer.h.{}.mlp.act", ""),
        ("{}.ffn.update", "transformer.h.{}.mlp", ""),
        ("{+}.stream", "transformer.h.{}", ""),
        ("final.normed", "transformer.ln_f", ""),
        ("logits", "lm_head", ""),
    ),
    "llama": (
        ("embed.token", "model.embed_tokens", ""),
        ("{}.attention.input", "model.layers.{}.input_layernorm", ""),
        ("{}.attention.value", "model.layers.{}.self_attn.v_proj", "flat"),
        ("{}.attention.update", "model.layers.{}.self_attn.o_proj", ""),
        ("{}.ffn.input", "model.layers.{}.post_attention_layernorm", ""),
        ("{}.ffn.gate", "model.layers.{}.mlp.gate_proj", ""),
        ("{}.ffn.up", "model.layers.{}.mlp.up_proj", ""),
        ("{}.ffn.update", "model.layers.{}.mlp", ""),
        ("{+}.stream", "model.layers.{}", ""),
        ("final.normed", "model.norm", ""),
        ("logits", "lm_head", ""),
    ),
    "gpt_neox": (
        ("embed.token", "gpt_neox.embed_in", ""),
        ("{}.attention.input", "gpt_neox.layers.{}.input_layernorm", ""),
        ("{}.attention.update", "gpt_neox.layers.{}.attention.dense", ""),
        ("{}.ffn.input", "gpt_neox.layers.{}.post_attention_layernorm", ""),
        ("{}.ffn.up", "gpt_neox.layers.{}.mlp.dense_h_to_4h", ""),
        ("{}.ffn.neurons", "gpt_neox.layers.{}.mlp.act", ""),
        ("{}.ffn.update", "gpt_neox.layers.{}.mlp", ""),
        ("{+}.stream", "gpt_neox.layers.{}", ""),
        ("final.normed", "gpt_neox.final_layer_norm", ""),
        ("logits", "lm_head", ""),
    ),
    "bert": (
        ("embed.token", "bert.embeddings.word_embeddings", ""),
        ("embed.position", "bert.embeddings.position_embeddings", ""),
        ("embed.type", "bert.embeddings.token_type_embeddings", ""),
        ("0.stream", "bert.embeddings", ""),
        ("{}.attention.query", "bert.encoder.layer.{}.attention.self.query", "flat"),
        ("{}.attention.key", "bert.encoder.layer.{}.attention.self.key", "flat"),
        ("{}.attention.value", "bert.encoder.layer.{}.attention.self.value", "flat"),
        ("{}.attention.update", "bert.encoder.layer.{}.attention.output.dense", ""),
        ("{}.stream.mid", "bert.encoder.layer.{}.attention.output", ""),
        ("{}.ffn.up", "bert.encoder.layer.{}.intermediate.dense", ""),
        ("{}.ffn.neurons", "bert.encoder.layer.{}.intermediate.intermediate_act_fn", ""),
        ("{}.ffn.update", "bert.encoder.layer.{}.output.dense", ""),
        ("{+}.stream", "bert.encoder.layer.{}.output", ""),
        ("pooled", "bert.pooler", ""),
        ("logits", "cls.predictions", ""),
    ),
}
_THEIRS = re.compile(r"(?:blocks\.(\d+)\.)?((?:\w+\.)?hook_\w+)")


def transformer_lens_names(config: Config) -> dict[str, tuple[str, str]]:
    """TransformerLens's names for the sites of a model, with ours and what they keep of it.

    Their queries and keys before the rotation are no sites here. Raises SiteError for a post-norm model or an
    encoder-decoder: their names stand for other values there ("hook_attn_out" for the stream behind the norm).
    """
    if isinstance(config.block, PostNorm) or config.encoder is not None:
        raise SiteError("TransformerLens's names are those of pre-norm models without an encoder: read the sites")
    changed = ROTATED if isinstance(config.positions, Rotary) else {}
    changed |= GATED if isinstance(config.activation, SwiGLU) else {}
    table = [(ours, _swapped(theirs, changed), kept) for ours, theirs, kept in TRANSFORMER_LENS]
    return _named([*table, ONE_NORM, GATE], config)


def hugging_face_names(config: Config, family: str) -> dict[str, tuple[str, str]]:
    """The modules of Hugging Face's models whose output is a site, with ours and what they keep of it.

    `family` is their `model_type`. `output_hidden_states` gives "{l}.stream", but last "final.normed" where there is a
    final norm; `output_attentions` gives "{l}.attention.pattern". Raises SiteError for a family without a table.
    """
    if family not in HUGGING_FACE:
        raise SiteError(f"there are tables for {', '.join(HUGGING_FACE)}, got {family!r}")
    return _named(HUGGING_FACE[family], config)


def names_table(config: Config, family: str = "transformer_lens") -> Table:
    """Their names beside ours: of TransformerLens, or of a Hugging Face `model_type`."""
    lens = family == "transformer_lens"
    names = transformer_lens_names(config) if lens else hugging_face_names(config, family)
    words = {"": "", "1/": "1 / ours", "flat": "heads side by side"}
    rows = tuple((site, theirs, words[kept]) for theirs, (site, kept) in names.items())
    return Table(f"sites and their names in {family}", ("site", "their name", "their value"), rows)


def ours(name: str, known: Sequence[str]) -> str | None:
    """The known site that TransformerLens calls so; None if there is none."""
    found = _THEIRS.fullmatch(name)
    if found is None:
        return None
    layer, rest = found[1], found[2]
    back = {other: theirs for theirs, other in (ROTATED | GATED).items()}
    for site, theirs, _ in (GATE, ONE_NORM, *TRANSFORMER_LENS):
        if theirs.removeprefix("blocks.{}.") in (rest, back.get(rest, rest)) and ("{" in theirs) == bool(layer):
            own = site.replace("{+}", str(int(layer or 0) + 1)).replace("{}", layer or "")
            if own in known:
                return own
    return None


def _named(table: list[Line] | tuple[Line, ...], config: Config) -> dict[str, tuple[str, str]]:
    """The lines of a table that a model has sites for, each layer's in its turn."""
    known = {site.name: order for order, site in enumerate(sites(config))}
    found: dict[str, tuple[str, str]] = {}
    for site, theirs, kept in table:
        for layer in range(config.n_layers) if "{" in theirs else (0,):
            own = site.replace("{+}", str(layer + 1)).replace("{}", str(layer))
            if own in known:
                found[theirs.replace("{}", str(layer))] = (own, kept)
    return dict(sorted(found.items(), key=lambda line: known[line[1][0]]))


def _swapped(name: str, changed: Mapping[str, str]) -> str:
    for theirs, other in changed.items():
        if name.endswith(theirs):
            return name.removesuffix(theirs) + other
    return name

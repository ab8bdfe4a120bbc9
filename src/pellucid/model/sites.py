"""Every value of a forward pass by name: one name per value, one list, in the order the data flows."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from re import Match

from .config import Config, LayerNorm, Learned, MaskedLanguage, Parallel, PostNorm, Rotary, SwiGLU

STREAM = ("B", "T", "D")


@dataclass(frozen=True)
class Site:
    """A place where a value can be seen: its name, the lessons' symbol, its formula, and its axes.

    Axes: B batch, T position, S key position, H query heads, G key-value heads, D model width, K head width,
    F feed-forward width, V vocabulary, C the classes of the next-sentence head.
    """

    name: str
    symbol: str
    formula: str
    axes: tuple[str, ...]

    @property
    def layer(self) -> int | None:
        """The layer in the name, if there is one; the last stream counts as a layer of its own."""
        return next((int(part) for part in self.name.split(".") if part.isdigit()), None)

    def shape(self, config: Config, length: int, batch: int = 1, source: int | None = None) -> tuple[int, ...]:
        """The value's shape for a text of `length` tokens, and a `source` text of that many (else as many)."""
        source = length if source is None else source
        keys = source if ".cross." in self.name else length
        if config.encoder is not None and self.name.startswith("encoder."):
            config, length, keys = config.encoder, source, source
        sizes = {
            "B": batch,
            "T": length,
            "S": keys,
            "H": config.n_heads,
            "G": config.n_kv_heads,
            "D": config.d_model,
            "K": config.d_head,
            "F": config.d_ff,
            "V": config.vocab_size,
            "C": 2,
        }
        return tuple(sizes[axis] for axis in self.axes)

    def bytes(self, config: Config, length: int, batch: int = 1, itemsize: int = 4, source: int | None = None) -> int:
        """What the value takes in memory, at `itemsize` bytes a number (4 in fp32)."""
        return prod(self.shape(config, length, batch, source)) * itemsize


@cache
def sites(config: Config) -> tuple[Site, ...]:
    """All sites of a transformer of this shape; those of an encoder first."""
    if config.encoder is None:
        return tuple(_sites(config))
    return (*_sided("encoder.", _sites(config.encoder)), *_sided("decoder.", _sites(config)))


def _sided(side: str, found: Iterable[Site]) -> list[Site]:
    """Sites of one side of an encoder-decoder: its name is put before theirs, in formulas too."""
    own = list(found)
    names = {site.name for site in own}

    def whole(word: Match[str]) -> str:
        return f"{side}{word[0]}" if word[0] in names else word[0]

    return [replace(site, name=side + site.name, formula=re.sub(r"[\w.]+", whole, site.formula)) for site in own]


def _sites(config: Config) -> Iterator[Site]:
    yield from _embedding(config)
    entered = "embedding"
    for layer in range(config.n_layers):
        yield Site(f"{layer}.stream", f"X^({layer})", entered, STREAM)
        if isinstance(config.block, Parallel):
            yield from _parallel(config, layer)
            entered = f"{layer}.stream + {layer}.attention.update + {layer}.ffn.update"
            continue
        parts = [("attention", "stream"), ("cross", "stream.mid"), ("ffn", "stream.cross")]
        if config.encoder is None:
            parts = [("attention", "stream"), ("ffn", "stream.mid")]
        for part, state in parts:
            if state != "stream":
                yield Site(f"{layer}.{state}", "X'" if state == "stream.mid" else "X''", entered, STREAM)
            yield from _input(config, f"{layer}.{part}", f"{layer}.{state}")
            yield from _ffn(config, layer) if part == "ffn" else _attention(config, layer, part)
            entered = f"{layer}.{state} + {layer}.{part}.update"
            if isinstance(config.block, PostNorm):
                name = f"{layer}.{part}.sum"
                yield Site(name, "X + F(X)", entered, STREAM)
                yield Site(f"{name}.scale", "1/sigma", _scale_formula(config, "X + F(X)"), ("B", "T"))
                entered = f"{type(config.norm).__name__}({name})"
    yield Site(f"{config.n_layers}.stream", f"X^({config.n_layers})", entered, STREAM)
    yield from _ending(config)


def _embedding(config: Config) -> Iterator[Site]:
    yield Site("embed.token", "E[id_t]", _scaled("E[id_t]", config.embedding_scale), STREAM)
    if isinstance(config.positions, Learned):
        yield Site("embed.position", "P_t", "P[t]", STREAM)
    elif not isinstance(config.positions, Rotary):
        yield Site("embed.position", "P_t", "sin and cos of t at falling frequencies", STREAM)
    if config.n_token_types:
        yield Site("embed.type", "token type", "S[type_t]", STREAM)
    if config.embedding_norm:
        yield Site("embed.sum", "sum of embeddings", "token + position + type", STREAM)
        yield Site("embed.sum.scale", "1/sigma", _scale_formula(config, "embed.sum"), ("B", "T"))


def _input(config: Config, name: str, state: str) -> Iterator[Site]:
    """What a sublayer reads of a state."""
    if isinstance(config.block, PostNorm):
        yield Site(f"{name}.input", "X", state, STREAM)
        return
    if not (isinstance(config.block, Parallel) and config.block.norms == 1):
        yield Site(f"{name}.input.scale", "1/sigma", _scale_formula(config, "X"), ("B", "T"))
    norm = type(config.norm).__name__
    yield Site(f"{name}.input", f"{norm}(X)", f"{norm}({state})", STREAM)


def _parallel(config: Config, layer: int) -> Iterator[Site]:
    """Attention and feed-forward layer that read the same state."""
    state = f"{layer}.stream"
    if isinstance(config.block, Parallel) and config.block.norms == 1:
        yield Site(f"{layer}.norm.scale", "1/sigma", _scale_formula(config, "X"), ("B", "T"))
    yield from _input(config, f"{layer}.attention", state)
    yield from _attention(config, layer, "attention")
    yield from _input(config, f"{layer}.ffn", state)
    yield from _ffn(config, layer)


def _attention(config: Config, layer: int, part: str) -> list[Site]:
    name, of, along = f"{layer}.{part}", "input", "T"
    if part == "cross":
        of, along = "encoder's final stream", "S"
    rotated = ", rotated by position" if isinstance(config.positions, Rotary) and part == "attention" else ""
    scale = "/ sqrt(d_k)" if not config.attention_scales else f"* {config.attention_scale(layer):g}"
    bias = " + b_O" if config.out_bias else ""
    return [
        Site(f"{name}.query", "Q", f"input W_Q{rotated}", ("B", "T", "H", "K")),
        Site(f"{name}.key", "K", f"{of} W_K{rotated}", ("B", along, "G", "K")),
        Site(f"{name}.value", "V", f"{of} W_V", ("B", along, "G", "K")),
        Site(f"{name}.scores", "S", f"Q K^T {scale}, -inf where masked", ("B", "H", "T", "S")),
        Site(f"{name}.pattern", "A", "softmax(scores) over the keys", ("B", "H", "T", "S")),
        Site(f"{name}.heads", "head_h", "A V", ("B", "T", "H", "K")),
        Site(f"{name}.writes", "head_h W_O^h", "heads W_O, head by head", ("B", "T", "H", "D")),
        Site(f"{name}.update", "MHA(X)", f"sum of writes{bias}", STREAM),
    ]


def _ffn(config: Config, layer: int) -> list[Site]:
    name, act, gated = f"{layer}.ffn", type(config.activation).__name__, isinstance(config.activation, SwiGLU)
    gate = [Site(f"{name}.gate", "x W_gate", "input W_gate", ("B", "T", "F"))] if gated else []
    return [
        *gate,
        Site(f"{name}.up", "x W_up", "input W_up", ("B", "T", "F")),
        Site(f"{name}.neurons", "m", "up * SiLU(gate)" if gated else f"{act}(up)", ("B", "T", "F")),
        Site(f"{name}.update", "FFN(X')", "neurons W_down" + (" + b_down" if config.ffn_bias else ""), STREAM),
    ]


def _ending(config: Config) -> Iterator[Site]:
    """What is made of the final stream."""
    last = read = f"{config.n_layers}.stream"
    norm = type(config.norm).__name__
    if config.final_norm:
        read = "final.normed"
        yield Site("final.scale", "1/sigma", _scale_formula(config, "X^(L)"), ("B", "T"))
        yield Site(read, f"{norm}(X^(L))", f"{norm}({last})", STREAM)
    if isinstance(config.head, MaskedLanguage):
        yield Site("head.dense", "x W", f"{read} W_dense + b", STREAM)
        yield Site("head.active", "act(x W)", f"{type(config.activation).__name__}(head.dense)", STREAM)
        yield Site("head.scale", "1/sigma", _scale_formula(config, "head.active"), ("B", "T"))
        yield Site("head.normed", f"{norm}(act(x W))", f"{norm}(head.active)", STREAM)
        read = "head.normed"
    if config.head is not None:
        formula = f"{read} E^T" if config.tied else f"{read} W_U"
        bias = " + b_U" if isinstance(config.head, MaskedLanguage) or config.head.bias else ""
        yield Site("logits", "z", _scaled(formula + bias, config.logit_scale), ("B", "T", "V"))
    if config.pooler:
        yield Site("pooled", "tanh(x_0 W)", "tanh(first token's final stream W_pool + b)", ("B", "D"))
    if config.next_sentence:
        yield Site("head.next_sentence", "is next, is not", "pooled W_ns + b", ("B", "C"))


def _scale_formula(config: Config, state: str) -> str:
    inside = f"var({state})" if isinstance(config.norm, LayerNorm) else f"mean({state}^2)"
    return f"1 / sqrt({inside} + eps)"


def _scaled(formula: str, scale: float) -> str:
    return formula if scale == 1.0 else f"{formula} * {scale:g}"

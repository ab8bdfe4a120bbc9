"""Every value of a forward pass by name: one name per value, one list, in the order the data flows."""

from dataclasses import dataclass
from functools import cache
from math import prod

from .config import Config, Learned, SwiGLU


@dataclass(frozen=True)
class Site:
    """A place where a value can be seen: its name, the lessons' symbol, its formula, and its axes.

    Axes: B batch, T position, S key position, H query heads, G key-value heads, D model width, K head width,
    F feed-forward width, V vocabulary.
    """

    name: str
    symbol: str
    formula: str
    axes: tuple[str, ...]

    def shape(self, config: Config, length: int, batch: int = 1) -> tuple[int, ...]:
        """The value's shape for a text of `length` tokens."""
        sizes = {
            "B": batch,
            "T": length,
            "S": length,
            "H": config.n_heads,
            "G": config.n_kv_heads,
            "D": config.d_model,
            "K": config.d_head,
            "F": config.d_ff,
            "V": config.vocab_size,
        }
        return tuple(sizes[axis] for axis in self.axes)

    def bytes(self, config: Config, length: int, batch: int = 1, itemsize: int = 4) -> int:
        """What the value takes in memory, at `itemsize` bytes a number (4 in fp32)."""
        return prod(self.shape(config, length, batch)) * itemsize


@cache
def sites(config: Config) -> tuple[Site, ...]:
    """All sites of a transformer of this shape."""
    found = [Site("embed.token", "E[id_t]", _scaled("E[id_t]", config.embedding_scale), ("B", "T", "D"))]
    if isinstance(config.positions, Learned):
        found.append(Site("embed.position", "P_t", "P[t]", ("B", "T", "D")))
    for layer in range(config.n_layers):
        found += _attention(config, layer) + _ffn(config, layer)
    last = config.n_layers
    norm = type(config.norm).__name__
    logits = _scaled("final.normed E^T" if config.tied else "final.normed W_U", config.logit_scale)
    return (
        *found,
        Site(f"{last}.stream", f"X^({last})", f"{last - 1}.stream.mid + {last - 1}.ffn.update", ("B", "T", "D")),
        Site("final.scale", "1/sigma", _scale_formula(config, "X^(L)"), ("B", "T")),
        Site("final.normed", f"{norm}(X^(L))", f"{norm}({last}.stream)", ("B", "T", "D")),
        Site("logits", "z", logits, ("B", "T", "V")),
    )


def _attention(config: Config, layer: int) -> list[Site]:
    name, norm = f"{layer}.attention", type(config.norm).__name__
    rotated = "" if isinstance(config.positions, Learned) else ", rotated by position"
    before = "embed.token" + (" + embed.position" if isinstance(config.positions, Learned) else "")
    stream = f"{layer - 1}.stream.mid + {layer - 1}.ffn.update" if layer else before
    scale = "/ sqrt(d_k)" if not config.attention_scales else f"* {config.attention_scale(layer):g}"
    bias = " + b_O" if config.out_bias else ""
    return [
        Site(f"{layer}.stream", f"X^({layer})", stream, ("B", "T", "D")),
        Site(f"{name}.input.scale", "1/sigma", _scale_formula(config, f"X^({layer})"), ("B", "T")),
        Site(f"{name}.input", f"{norm}(X)", f"{norm}({layer}.stream)", ("B", "T", "D")),
        Site(f"{name}.query", "Q", f"input W_Q{rotated}", ("B", "T", "H", "K")),
        Site(f"{name}.key", "K", f"input W_K{rotated}", ("B", "T", "G", "K")),
        Site(f"{name}.value", "V", "input W_V", ("B", "T", "G", "K")),
        Site(f"{name}.scores", "S", f"Q K^T {scale}, -inf where masked", ("B", "H", "T", "S")),
        Site(f"{name}.pattern", "A", "softmax(scores) over the keys", ("B", "H", "T", "S")),
        Site(f"{name}.heads", "head_h", "A V", ("B", "T", "H", "K")),
        Site(f"{name}.writes", "head_h W_O^h", "heads W_O, head by head", ("B", "T", "H", "D")),
        Site(f"{name}.update", "MHA(X)", f"sum of writes{bias}", ("B", "T", "D")),
        Site(f"{layer}.stream.mid", "X'", f"{layer}.stream + {name}.update", ("B", "T", "D")),
    ]


def _ffn(config: Config, layer: int) -> list[Site]:
    name, norm = f"{layer}.ffn", type(config.norm).__name__
    act = type(config.activation).__name__
    gated = isinstance(config.activation, SwiGLU)
    found = [
        Site(f"{name}.input.scale", "1/sigma", _scale_formula(config, "X'"), ("B", "T")),
        Site(f"{name}.input", f"{norm}(X')", f"{norm}({layer}.stream.mid)", ("B", "T", "D")),
    ]
    if gated:
        found.append(Site(f"{name}.gate", "x W_gate", "input W_gate", ("B", "T", "F")))
    return [
        *found,
        Site(f"{name}.up", "x W_up", "input W_up", ("B", "T", "F")),
        Site(f"{name}.neurons", "m", "up * SiLU(gate)" if gated else f"{act}(up)", ("B", "T", "F")),
        Site(f"{name}.update", "FFN(X')", "neurons W_down" + (" + b_down" if config.ffn_bias else ""), ("B", "T", "D")),
    ]


def _scale_formula(config: Config, state: str) -> str:
    inside = f"var({state})" if type(config.norm).__name__ == "LayerNorm" else f"mean({state}^2)"
    return f"1 / sqrt({inside} + eps)"


def _scaled(formula: str, scale: float) -> str:
    return formula if scale == 1.0 else f"{formula} * {scale:g}"

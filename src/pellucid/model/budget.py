"""Where a transformer's parameters are, line by line, counted from its config alone."""

from dataclasses import dataclass

from .config import Config, LayerNorm, Learned


@dataclass(frozen=True)
class Line:
    """One line of the budget: a part, how its count comes about, and the count."""

    part: str
    formula: str
    count: int


@dataclass(frozen=True)
class Budget:
    """The parameters of a transformer. `lines` add up to `total`; a block's own parts are in `block`.

    `rule` is the rule of thumb 12 d^2 L (4 d^2 for attention and 8 d^2 for the feed-forward layer, in each block).
    """

    block: tuple[Line, ...]
    lines: tuple[Line, ...]
    rule: int

    @property
    def total(self) -> int:
        """All parameters, a tied matrix once."""
        return sum(line.count for line in self.lines)


def budget(config: Config) -> Budget:
    """Count every parameter of a transformer of this shape; nothing is allocated."""
    block = _block(config)
    each = sum(line.count for line in block)
    layers, d, vocab = config.n_layers, config.d_model, config.vocab_size
    lines = [Line("token embedding", f"{vocab:,} x {d:,}", vocab * d)]
    if isinstance(config.positions, Learned):
        lines.append(Line("position embedding", f"{config.context_length:,} x {d:,}", config.context_length * d))
    lines.append(Line("blocks", f"{layers} x {each:,}", layers * each))
    formula, count = _norm(config)
    lines.append(Line("final norm", formula, count))
    if not config.tied:
        lines.append(Line("unembedding", f"{vocab:,} x {d:,}", vocab * d))
    return Budget(block, tuple(lines), 12 * d * d * layers)


def _block(config: Config) -> tuple[Line, ...]:
    d, f = config.d_model, config.d_ff
    wide, narrow = config.n_heads * config.d_head, config.n_kv_heads * config.d_head
    matrices = 3 if config.gated else 2
    biases = (matrices - 1) * f + d if config.ffn_bias else 0
    norm_formula, norm_count = _norm(config)
    return (
        _matrix("attention W_Q", d, wide, config.qkv_bias),
        _matrix("attention W_K", d, narrow, config.qkv_bias),
        _matrix("attention W_V", d, narrow, config.qkv_bias),
        _matrix("attention W_O", wide, d, config.out_bias),
        Line(
            "feed-forward",
            f"{matrices} x {d:,} x {f:,}" + (f" + {biases:,} biases" if biases else ""),
            matrices * d * f + biases,
        ),
        Line("two norms", f"2 x {norm_formula}" if norm_count == d else f"2 x ({norm_formula})", 2 * norm_count),
    )


def _matrix(part: str, d_in: int, d_out: int, bias: bool) -> Line:
    formula = f"{d_in:,} x {d_out:,}" + (f" + {d_out:,}" if bias else "")
    return Line(part, formula, d_in * d_out + (d_out if bias else 0))


def _norm(config: Config) -> tuple[str, int]:
    d = config.d_model
    if isinstance(config.norm, LayerNorm) and config.norm.bias:
        return f"2 x {d:,}", 2 * d
    return f"{d:,}", d

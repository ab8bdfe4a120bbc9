"""Where a transformer's parameters are, line by line, counted from its config alone."""

from collections.abc import Iterator
from dataclasses import dataclass

from .config import Config, LayerNorm, Learned, MaskedLanguage, Parallel


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
    return Budget(_block(config), tuple(_lines(config)), _rule(config))


def _lines(config: Config) -> Iterator[Line]:
    vocab, d, encoder = config.vocab_size, config.d_model, config.encoder
    yield from _embeddings(config, "")
    if encoder is not None:
        if not config.shared_embedding:
            yield Line("encoder's token embedding", f"{encoder.vocab_size:,} x {encoder.d_model:,}",
                       encoder.vocab_size * encoder.d_model)  # fmt: skip
        yield from _embeddings(encoder, "encoder's ", token=False)
        yield _blocks(encoder, "encoder's blocks")
        if encoder.final_norm:
            yield _norm_line(encoder, "encoder's final norm")
    yield _blocks(config, "blocks" if encoder is None else "decoder's blocks")
    if config.final_norm:
        yield _norm_line(config, "final norm")
    if isinstance(config.head, MaskedLanguage):
        yield _matrix("prediction head", d, d, bias=True)
        yield _norm_line(config, "prediction head's norm")
    if not config.tied:
        yield Line("unembedding", f"{vocab:,} x {d:,}", vocab * d)
    if isinstance(config.head, MaskedLanguage) or (config.head is not None and config.head.bias):
        yield Line("unembedding's bias", f"{vocab:,}", vocab)
    if config.pooler:
        yield _matrix("pooler", d, d, bias=True)
    if config.next_sentence:
        yield _matrix("next-sentence head", d, 2, bias=True)


def _embeddings(config: Config, whose: str, token: bool = True) -> Iterator[Line]:
    d = config.d_model
    if token:
        yield Line(f"{whose}token embedding", f"{config.vocab_size:,} x {d:,}", config.vocab_size * d)
    if isinstance(config.positions, Learned):
        yield Line(f"{whose}position embedding", f"{config.context_length:,} x {d:,}", config.context_length * d)
    if config.n_token_types:
        yield Line(f"{whose}token types", f"{config.n_token_types:,} x {d:,}", config.n_token_types * d)
    if config.embedding_norm:
        yield _norm_line(config, f"{whose}embedding norm")


def _blocks(config: Config, part: str) -> Line:
    each = sum(line.count for line in _block(config))
    return Line(part, f"{config.n_layers} x {each:,}", config.n_layers * each)


def _rule(config: Config) -> int:
    own = 12 * config.d_model**2 * config.n_layers
    return own if config.encoder is None else own + _rule(config.encoder)


def _block(config: Config) -> tuple[Line, ...]:
    d, f = config.d_model, config.d_ff
    matrices = 3 if config.gated else 2
    biases = (matrices - 1) * f + d if config.ffn_bias else 0
    norms = config.block.norms if isinstance(config.block, Parallel) else 2 if config.encoder is None else 3
    norm_formula, norm_count = _norm(config)
    each = norm_formula if norm_count == d else f"({norm_formula})"
    return (
        *_attention(config, "attention", d),
        *(_attention(config, "cross-attention", config.encoder.d_model) if config.encoder else ()),
        Line(
            "feed-forward",
            f"{matrices} x {d:,} x {f:,}" + (f" + {biases:,} biases" if biases else ""),
            matrices * d * f + biases,
        ),
        Line({1: "one norm", 2: "two norms", 3: "three norms"}[norms], f"{norms} x {each}", norms * norm_count),
    )


def _attention(config: Config, part: str, keys_from: int) -> tuple[Line, ...]:
    d, wide, narrow = config.d_model, config.n_heads * config.d_head, config.n_kv_heads * config.d_head
    return (
        _matrix(f"{part} W_Q", d, wide, config.qkv_bias),
        _matrix(f"{part} W_K", keys_from, narrow, config.qkv_bias),
        _matrix(f"{part} W_V", keys_from, narrow, config.qkv_bias),
        _matrix(f"{part} W_O", wide, d, config.out_bias),
    )


def _matrix(part: str, d_in: int, d_out: int, bias: bool) -> Line:
    formula = f"{d_in:,} x {d_out:,}" + (f" + {d_out:,}" if bias else "")
    return Line(part, formula, d_in * d_out + (d_out if bias else 0))


def _norm_line(config: Config, part: str) -> Line:
    return Line(part, *_norm(config))


def _norm(config: Config) -> tuple[str, int]:
    d = config.d_model
    if isinstance(config.norm, LayerNorm) and config.norm.bias:
        return f"2 x {d:,}", 2 * d
    return f"{d:,}", d

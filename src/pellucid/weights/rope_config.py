"""Rotary settings of config.json, in both spellings: rope_theta + rope_scaling, and rope_parameters."""

import math

from ..model.rotary import DynamicNTK, Linear, Llama3, LongRope, Rotary, Scaling, Yarn
from .fields import Fields


def take_rotary(fields: Fields, context_length: int) -> Rotary:
    """The rotary record; a config may use either spelling, or both where they agree.

    Raises CheckpointError where the two spellings differ, for an unknown rope type, and for fields that the type
    does not have.
    """
    base = fields.number("rope_theta", 10000.0) if "rope_theta" in fields else None
    fields.ignore("rope_theta")
    original = fields.whole("original_max_position_embeddings", 0) or None
    fields.only("partial_rotary_factor", 1.0)
    fields.only("rope_interleaved", False)
    records = []
    for spelling in ("rope_parameters", "rope_scaling"):
        inner = fields.inner(spelling)
        if inner is not None:
            records.append(_rotary(inner, base, original, context_length))
    if len(records) == 2 and records[0] != records[1]:
        raise fields.error(f"rope_parameters and rope_scaling differ: {records[0]} and {records[1]}")
    return records[0] if records else Rotary(10000.0 if base is None else base)


def _rotary(inner: Fields, base: float | None, original: int | None, context_length: int) -> Rotary:
    inner.only("partial_rotary_factor", 1.0)
    own = inner.number("rope_theta", 10000.0 if base is None else base)
    if base is not None and own != base:
        raise inner.error(f"rope_theta={own} differs from rope_theta={base} beside it")
    kind = _kind(inner)
    scaling = _scaling(kind, inner, _original_length(inner, original, context_length), context_length)
    inner.close()
    return Rotary(own, scaling=scaling)


def _kind(inner: Fields) -> str:
    old = inner.text("type", "")
    new = inner.text("rope_type", old or "default")
    if old and new != old:
        raise inner.error(f"rope_type={new!r} differs from type={old!r}")
    return new


def _original_length(inner: Fields, beside: int | None, context_length: int) -> int:
    own = inner.whole("original_max_position_embeddings", beside or context_length)
    if beside is not None and own != beside:
        raise inner.error(f"original_max_position_embeddings={own} differs from {beside} beside it")
    return own


def _scaling(kind: str, inner: Fields, original: int, context_length: int) -> Scaling | None:
    match kind:
        case "default":
            return None
        case "linear":
            return Linear(inner.number("factor"))
        case "dynamic":
            if original != context_length:
                raise inner.error(
                    f"dynamic scaling counts from max_position_embeddings={context_length}, "
                    f"got original_max_position_embeddings={original}"
                )
            return DynamicNTK(inner.number("factor"), context_length)
        case "llama3":
            low, high = inner.number("low_freq_factor"), inner.number("high_freq_factor")
            return Llama3(inner.number("factor"), low, high, original)
        case "yarn":
            return _yarn(inner, original, context_length)
        case "longrope":
            return _longrope(inner, original, context_length)
    raise inner.error(f"rope type {kind!r} is not known, only default, linear, dynamic, llama3, yarn, longrope")


def _yarn(inner: Fields, original: int, context_length: int) -> Yarn:
    inner.ignore("finetuned")
    factor = inner.number("factor", context_length / original)
    return Yarn(
        factor,
        original,
        inner.number("beta_fast", 32.0),
        inner.number("beta_slow", 1.0),
        _yarn_magnitude(inner, factor),
        inner.flag("truncate", True),
    )


def _yarn_magnitude(inner: Fields, factor: float) -> float | None:
    """attention_factor if given; else, with both mscales, the ratio of their 0.1 m ln(factor) + 1."""
    given, m, m_all = inner.some("attention_factor"), inner.some("mscale"), inner.some("mscale_all_dim")
    if given is not None or not m or not m_all:
        return given
    if factor <= 1:
        return 1.0
    return (0.1 * m * math.log(factor) + 1) / (0.1 * m_all * math.log(factor) + 1)


def _longrope(inner: Fields, original: int, context_length: int) -> LongRope:
    return LongRope(
        inner.numbers("short_factor"),
        inner.numbers("long_factor"),
        original,
        inner.number("factor", context_length / original),
        inner.some("attention_factor"),
    )

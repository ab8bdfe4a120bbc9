"""Rotary settings of config.json, in both spellings: rope_theta + rope_scaling, and rope_parameters."""

import math
from dataclasses import dataclass
from typing import Any

from ..model.config import Config
from ..model.rotary import DynamicNTK, Linear, Llama3, LongRope, Rotary, Scaling, Yarn
from .fields import Fields
from .files import shown


@dataclass(frozen=True)
class RopeKeys:
    """The names of the old spelling for the base and for the rotated fraction of a head, and its usual value.

    `partial` False: the family rotates whole heads, whatever its config says.
    """

    base: str = "rope_theta"
    fraction: str = "partial_rotary_factor"
    usual: float = 1.0
    partial: bool = False


def take_rotary(fields: Fields, context_length: int, keys: RopeKeys = RopeKeys()) -> Rotary:
    """The rotary record; a config may use either spelling, or both where they agree.

    Raises CheckpointError where the two spellings differ, for an unknown rope type, and for fields that the type
    does not have.
    """
    beside = _Beside(
        fields.some(keys.base),
        fields.some(keys.fraction),
        fields.whole("original_max_position_embeddings", 0) or None,
        context_length,
    )
    fields.only("rope_interleaved", False)
    records = []
    for spelling in ("rope_parameters", "rope_scaling"):
        inner = fields.inner(spelling)
        if inner is not None:
            records.append(_rotary(inner, beside, keys))
    if len(records) == 2 and records[0] != records[1]:
        raise fields.error(f"rope_parameters and rope_scaling differ: {records[0]} and {records[1]}")
    rotary = records[0] if records else _rotary(Fields({}, fields.where), beside, keys)
    if not keys.partial and rotary.fraction != 1.0:
        raise fields.error(f"partial_rotary_factor={rotary.fraction} is not supported, only 1.0")
    return rotary


@dataclass(frozen=True)
class _Beside:
    """What stands beside rope_scaling in the old spelling; None where it is absent."""

    base: float | None
    fraction: float | None
    original: int | None
    context_length: int


def _rotary(inner: Fields, beside: _Beside, keys: RopeKeys) -> Rotary:
    base = _agreed(inner, "rope_theta", keys.base, beside.base, 10000.0)
    fraction = _agreed(inner, "partial_rotary_factor", keys.fraction, beside.fraction, keys.usual)
    kind = _kind(inner)
    original = _original_length(inner, beside.original, beside.context_length)
    scaling = _scaling(kind, inner, original, beside.context_length)
    inner.close()
    return Rotary(base, fraction, scaling)


def _agreed(inner: Fields, name: str, old_name: str, beside: float | None, usual: float) -> float:
    own = inner.number(name, usual if beside is None else beside)
    if beside is not None and own != beside:
        raise inner.error(f"{name}={own} differs from {old_name}={beside} beside it")
    return own


def _kind(inner: Fields) -> str:
    old = inner.text("type", "")
    new = inner.text("rope_type", old or "default")
    if old and new != old:
        raise inner.error(f"rope_type={shown([new])} differs from type={shown([old])}")
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
    raise inner.error(f"rope type {shown([kind])} is not known, only default, linear, dynamic, llama3, yarn, longrope")


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


def rope_fields(config: Config, keys: RopeKeys = RopeKeys()) -> dict[str, Any]:
    """A config's rotary record in both spellings, so that releases of transformers before 5 and after read it alike."""
    rotary = config.positions
    if not isinstance(rotary, Rotary):
        return {}
    partial = {"partial_rotary_factor": rotary.fraction} if keys.partial or rotary.fraction != 1.0 else {}
    old = {keys.base: rotary.base, **({keys.fraction: rotary.fraction} if partial else {})}
    kind, scaling = _scaling_fields(rotary.scaling)
    return {
        **old,
        "rope_scaling": {"rope_type": kind, **scaling} if scaling else None,
        "rope_parameters": {"rope_type": kind, "rope_theta": rotary.base, **partial, **scaling},
    }


def _scaling_fields(scaling: Scaling | None) -> tuple[str, dict[str, Any]]:
    """The type's name and its numbers, the inverse of `_scaling`; what the type takes when left out is left out."""
    match scaling:
        case None:
            return "default", {}
        case Linear(factor):
            return "linear", {"factor": factor}
        case DynamicNTK(factor):
            return "dynamic", {"factor": factor}
        case Llama3(factor, low, high, original):
            bands = {"low_freq_factor": low, "high_freq_factor": high}
            return "llama3", {"factor": factor, **bands, "original_max_position_embeddings": original}
        case Yarn(factor, original, fast, slow, magnitude, truncate):
            kind, numbers = "yarn", {"beta_fast": fast, "beta_slow": slow, "truncate": truncate}
        case LongRope(short, long, original, factor, magnitude):
            kind, numbers = "longrope", {"short_factor": list(short), "long_factor": list(long)}
    given = {} if magnitude is None else {"attention_factor": magnitude}
    return kind, {"factor": factor, "original_max_position_embeddings": original, **numbers, **given}

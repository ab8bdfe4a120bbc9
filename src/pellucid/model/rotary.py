"""Rotary positions (Su et al. 2021): pairs of features of queries and keys, turned by an angle that grows with place.

The two halves of the rotated features form the pairs (the layout of GPT-NeoX and of Hugging Face's Llama);
checkpoints that pair neighbours are permuted when they are read.
"""

import math
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .checks import at_least


@dataclass(frozen=True)
class Linear:
    """Every frequency divided by `factor` (position interpolation, Chen et al. 2023)."""

    factor: float

    def __post_init__(self) -> None:
        at_least("Linear.factor", self.factor, 1.0)


@dataclass(frozen=True)
class DynamicNTK:
    """Past `original_length` the base grows with the length, so frequencies depend on how long the text is."""

    factor: float
    original_length: int

    def __post_init__(self) -> None:
        at_least("DynamicNTK.factor", self.factor, 1.0)
        at_least("DynamicNTK.original_length", self.original_length, 1)


@dataclass(frozen=True)
class Yarn:
    """Fast pairs kept, slow ones divided by `factor`, a ramp between (Peng et al. 2023).

    `magnitude` multiplies cos and sin; None takes the paper's 0.1 ln(factor) + 1.
    """

    factor: float
    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    magnitude: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        at_least("Yarn.factor", self.factor, 1.0)
        at_least("Yarn.original_length", self.original_length, 1)
        if not self.beta_fast > self.beta_slow > 0:
            raise ValueError(
                f"Yarn needs beta_fast > beta_slow > 0, got beta_fast={self.beta_fast}, beta_slow={self.beta_slow}"
            )


@dataclass(frozen=True)
class Llama3:
    """Llama 3.1's three bands: short wavelengths kept, long ones divided by `factor`, the rest blended."""

    factor: float
    low: float = 1.0
    high: float = 4.0
    original_length: int = 8192

    def __post_init__(self) -> None:
        at_least("Llama3.factor", self.factor, 1.0)
        at_least("Llama3.original_length", self.original_length, 1)
        if not self.high > self.low > 0:
            raise ValueError(f"Llama3 needs high > low > 0, got low={self.low}, high={self.high}")


@dataclass(frozen=True)
class LongRope:
    """One factor per pair: `short` up to `original_length`, `long` beyond it (Ding et al. 2024).

    `magnitude` multiplies cos and sin; None takes sqrt(1 + ln(factor) / ln(original_length)), where `factor` is the
    extended length over the original one.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_length: int
    factor: float
    magnitude: float | None = None

    def __post_init__(self) -> None:
        at_least("LongRope.original_length", self.original_length, 2)
        if len(self.short) != len(self.long):
            raise ValueError(f"LongRope needs as many long factors, got {len(self.long)} and {len(self.short)}")
        if not all(number > 0 for number in self.short + self.long):
            raise ValueError("LongRope's factors must all be above 0")


Scaling = Linear | DynamicNTK | Yarn | Llama3 | LongRope


@dataclass(frozen=True)
class Rotary:
    """Rotation of the first `fraction` of a head's features by position * base^(-2i/n), n of them rotated."""

    base: float = 10000.0
    fraction: float = 1.0
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        if not self.base > 1.0:
            raise ValueError(f"Rotary.base must be above 1, got {self.base}")
        if not 0.0 < self.fraction <= 1.0:
            raise ValueError(f"Rotary.fraction must lie in (0, 1], got {self.fraction}")

    def width(self, d_head: int) -> int:
        """How many of a head's features are rotated."""
        return int(d_head * self.fraction)

    def check_width(self, d_head: int) -> None:
        """Refuse a head width that cannot be rotated in pairs."""
        width = self.width(d_head)
        if width < 2 or width % 2:
            raise ValueError(f"rotary positions turn pairs: d_head * fraction must be even and at least 2, got {width}")
        if isinstance(self.scaling, DynamicNTK) and width < 4:
            raise ValueError(f"DynamicNTK needs at least two pairs to rotate, got d_head * fraction = {width}")
        if isinstance(self.scaling, LongRope) and len(self.scaling.short) != width // 2:
            raise ValueError(f"LongRope needs one factor per pair ({width // 2}), got {len(self.scaling.short)}")


@cache
def frequencies(rotary: Rotary, d_head: int, length: int) -> tuple[tuple[float, ...], float]:
    """Angles per position of each pair, and what cos and sin are multiplied by, for a text of `length` in all.

    Only DynamicNTK and LongRope look at the length. Computed in Python's float64.
    """
    n = rotary.width(d_head)
    scaling = rotary.scaling
    base = rotary.base
    if isinstance(scaling, DynamicNTK) and length > scaling.original_length:
        growth = scaling.factor * length / scaling.original_length - (scaling.factor - 1)
        base *= growth ** (n / (n - 2))
    plain = tuple(base ** (-2 * i / n) for i in range(n // 2))
    match scaling:
        case Linear(factor):
            return tuple(f / factor for f in plain), 1.0
        case Llama3():
            return tuple(_llama3(f, scaling) for f in plain), 1.0
        case Yarn():
            return _yarn(plain, rotary.base, n, scaling), _yarn_magnitude(scaling)
        case LongRope():
            factors = scaling.long if length > scaling.original_length else scaling.short
            return tuple(f / factor for f, factor in zip(plain, factors, strict=True)), _longrope_magnitude(scaling)
        case _:
            return plain, 1.0


def table(
    rotary: Rotary, d_head: int, positions: Int[Tensor, "B T"], length: int, dtype: torch.dtype
) -> tuple[Float[Tensor, "B T 1 half"], Float[Tensor, "B T 1 half"]]:
    """cos and sin for every position and pair, made in at least fp32 whatever the model's precision, then cast."""
    angles, magnitude = frequencies(rotary, d_head, length)
    exact = torch.promote_types(dtype, torch.float32)
    angle = positions[..., None, None].to(exact) * torch.tensor(angles, dtype=exact, device=positions.device)
    return (angle.cos() * magnitude).to(dtype), (angle.sin() * magnitude).to(dtype)


def rotate(
    x: Float[Tensor, "B T heads K"], cos: Float[Tensor, "b T 1 half"], sin: Float[Tensor, "b T 1 half"]
) -> Float[Tensor, "B T heads K"]:
    """Turn the pair (x_i, x_{i+half}) by its angle; features past the rotated ones stay."""
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def _llama3(frequency: float, scaling: Llama3) -> float:
    wavelength = 2 * math.pi / frequency
    turns = scaling.original_length / wavelength
    if turns > scaling.high:
        return frequency
    if turns < scaling.low:
        return frequency / scaling.factor
    keep = (turns - scaling.low) / (scaling.high - scaling.low)
    return (1 - keep) * frequency / scaling.factor + keep * frequency


def _yarn(plain: tuple[float, ...], base: float, n: int, scaling: Yarn) -> tuple[float, ...]:
    def pair_with(turns: float) -> float:
        return n * math.log(scaling.original_length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair_with(scaling.beta_fast), pair_with(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n - 1)
    high = high + 0.001 if high == low else high  # a ramp of no width would divide by zero
    slowed = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(n // 2)]
    return tuple(f * (1 - s) + f / scaling.factor * s for f, s in zip(plain, slowed, strict=True))


def _yarn_magnitude(scaling: Yarn) -> float:
    if scaling.magnitude is not None:
        return scaling.magnitude
    return 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0


def _longrope_magnitude(scaling: LongRope) -> float:
    if scaling.magnitude is not None:
        return scaling.magnitude
    if scaling.factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.original_length))

"""The learning rate of each step, counted from 0, as functions of the step alone.

A warm-up of w steps rises in a straight line and reaches the peak at step w.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..model.checks import at_least, positive, whole

Schedule = Callable[[int], float]


@dataclass(frozen=True)
class Constant:
    """The peak, after the warm-up."""

    peak: float
    warmup: int = 0

    def __post_init__(self) -> None:
        _check(self.peak, self.warmup)

    def __call__(self, step: int) -> float:
        return self.peak * _risen(step, self.warmup)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from the peak down to `final`, reached at step `steps` (Loshchilov & Hutter 2017)."""

    peak: float
    steps: int
    warmup: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        _check(self.peak, self.warmup, self.steps, self.final)

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return self.peak * _risen(step, self.warmup)
        share = _share(step, self.warmup, self.steps)
        return self.final + (self.peak - self.final) * 0.5 * (1.0 + math.cos(math.pi * share))


@dataclass(frozen=True)
class Linear:
    """A straight line from the peak down to `final`, reached at step `steps`."""

    peak: float
    steps: int
    warmup: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        _check(self.peak, self.warmup, self.steps, self.final)

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return self.peak * _risen(step, self.warmup)
        return self.peak + (self.final - self.peak) * _share(step, self.warmup, self.steps)


@dataclass(frozen=True)
class WarmupStableDecay:
    """The peak for most of the run, and over the last `decay` steps a straight line to `final` (Hu et al. 2024)."""

    peak: float
    steps: int
    warmup: int = 0
    decay: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        _check(self.peak, self.warmup, self.steps, self.final)
        if not 0 <= self.decay <= self.steps - self.warmup:
            raise ValueError(f"decay must leave room for {self.warmup} steps of warm-up in {self.steps}: {self.decay}")

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return self.peak * _risen(step, self.warmup)
        return self.peak + (self.final - self.peak) * _share(step, self.steps - self.decay, self.steps)


@dataclass(frozen=True)
class InverseRoot:
    """scale * d_model^-0.5 * min(n^-0.5, n * warmup^-1.5) at step n, counted from 1 (Vaswani et al. 2017)."""

    d_model: int
    warmup: int = 4000
    scale: float = 1.0

    def __post_init__(self) -> None:
        whole("d_model", self.d_model)
        whole("warmup", self.warmup)
        positive("scale", self.scale)

    def __call__(self, step: int) -> float:
        n = step + 1
        return self.scale * self.d_model**-0.5 * min(n**-0.5, n * self.warmup**-1.5)


def _risen(step: int, warmup: int) -> float:
    return min(1.0, (step + 1) / (warmup + 1))


def _share(step: int, first: int, last: int) -> float:
    """How far a step is on the way from `first` to `last`, from 0 to 1."""
    return min(1.0, max(0.0, (step - first) / (last - first))) if last > first else float(step >= last)


def _check(peak: float, warmup: int, steps: int | None = None, final: float = 0.0) -> None:
    positive("the peak learning rate", peak)
    at_least("warmup", warmup, 0)
    at_least("the final learning rate", final, 0)
    if steps is not None and not warmup <= steps:
        raise ValueError(f"schedule.warmup must end within the {steps} steps of the run, got {warmup}")
    if final > peak:
        raise ValueError(f"the final learning rate must not be above the peak {peak}, got {final}")

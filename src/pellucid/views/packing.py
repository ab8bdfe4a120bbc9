"""Numbers into packed arrays, and out again. Apart from what they are packed into, since it needs numpy."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .packed import Array, Kind

_STEPS = 255


def pack(
    name: str,
    values: Any,
    kind: Kind,
    triangle: bool = False,
    within: tuple[float, float] | None = None,
) -> Array:
    """An array in as few bytes as `kind` takes.

    `values` is anything that numpy reads. `within` is the range of 8-bit numbers (else from the least to the greatest
    value). With `triangle` the last two axes, of equal size, hold nothing above the diagonal, which is left out. Raises
    ValueError for what is not finite where 8 bits or whole numbers are asked for, for a range that the values leave,
    and for numbers too large for 16 bits.
    """
    numbers = np.asarray(values)
    shape = numbers.shape
    flat = numbers[(..., *np.tril_indices(shape[-1]))] if triangle else numbers
    if kind == "uint8":
        return _in_steps(name, shape, np.asarray(flat, np.float64), triangle, within)
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is refused below
        packed = flat.astype({"float16": "<f2", "float32": "<f4", "int32": "<i4"}[kind])
    wide = np.asarray(flat, np.float64)
    finite = np.isfinite(wide)
    if not np.array_equal(finite, np.isfinite(packed)):
        raise ValueError(f"{name} holds numbers too large for {kind}: the largest is {np.abs(wide[finite]).max():g}")
    error = np.abs(wide[finite] - packed[finite].astype(np.float64)).max(initial=0.0)
    if kind == "int32" and error:
        raise ValueError(f"{name} holds what is no whole number of 32 bits")
    return Array(name, kind, shape, packed.tobytes(), triangle=triangle, error=float(error))


def unpacked(array: Array) -> np.ndarray:
    """The numbers again, each within `error` of what it was; 0 above the diagonal of a triangle."""
    kinds = {"uint8": "u1", "float16": "<f2", "float32": "<f4", "int32": "<i4"}
    flat = np.frombuffer(array.data, kinds[array.kind])
    if array.kind == "uint8":
        flat = array.low + (array.high - array.low) * (flat.astype(np.float64) / _STEPS)
    if not array.triangle:
        return flat.reshape(array.shape)
    size = array.shape[-1]
    full = np.zeros((*array.shape[:-2], size, size), flat.dtype)
    full[(..., *np.tril_indices(size))] = flat.reshape(*array.shape[:-2], -1)
    return full


def _in_steps(
    name: str, shape: Sequence[int], flat: np.ndarray, triangle: bool, within: tuple[float, float] | None
) -> Array:
    if not np.isfinite(flat).all():
        raise ValueError(f"{name} holds what is not finite, which 8 bits cannot say")
    low, high = within or (float(flat.min(initial=0.0)), float(flat.max(initial=0.0)))
    slack = 1e-6 * (high - low)
    if flat.size and (flat.min() < low - slack or flat.max() > high + slack):
        raise ValueError(f"{name} must lie within {low:g} to {high:g}, got {flat.min():g} to {flat.max():g}")
    share = (flat - low) / (high - low) if high > low else np.zeros_like(flat)
    steps = np.rint(share * _STEPS).clip(0, _STEPS).astype(np.uint8)
    error = (high - low) / _STEPS / 2 + slack
    return Array(name, "uint8", tuple(shape), steps.tobytes(), low, high, triangle, error)

"""Sinusoidal positions (Vaswani et al. 2017), in the three layouts that are in use."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .config import Sinusoidal


def sinusoid(
    record: Sinusoidal, positions: Int[Tensor, "b T"], width: int, dtype: torch.dtype
) -> Float[Tensor, "b T D"]:
    """sin and cos of position * frequency for each position; worked out in float64, then cast."""
    half = width // 2
    steps = half - 1 if record.layout == "timescales" else half
    falling = torch.arange(half, device=positions.device, dtype=torch.float64) / steps
    angle = positions[..., None].double() * torch.exp(-math.log(10000.0) * falling)
    both = (angle.sin(), angle.cos())
    table = torch.stack(both, -1).flatten(-2) if record.layout == "interleaved" else torch.cat(both, -1)
    return table.to(dtype)

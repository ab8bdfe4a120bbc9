"""A small sample of weights, to notice that they changed.

Version counters of tensors miss what fused optimizers write, so values themselves are compared: about `_SIDE` x `_SIDE`
of each matrix, in a grid, so that a change to a whole head, neuron or token block is seen.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

_SIDE = 16


@torch.no_grad()
def fingerprint(weights: Iterable[Tensor]) -> Float[Tensor, "samples"]:
    """Sampled values of some weights, one after another, on their device and in their precision."""
    return torch.cat([_sample(weight).flatten() for weight in weights])


def _sample(weight: Tensor) -> Tensor:
    steps = tuple(slice(None, None, max(1, size // _SIDE)) for size in weight.shape)
    return weight.detach()[steps]

"""Texts as single vectors, for search and comparison."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ..model.flow import Looks
from ..model.heads import first_token
from ..model.transformer import Transformer
from .prompts import checked, pad_right


@torch.no_grad()
def embed(
    transformer: Transformer,
    rows: Sequence[Sequence[int]],
    pooling: str = "mean",
    unit: bool = False,
    looks: Looks | None = None,
) -> Float[Tensor, "N D"]:
    """One vector for each row of token ids: the final stream's "mean" over its tokens, or its "first" token's.

    Padding never counts, and each row gets what it would get alone. `unit` divides by the Euclidean length, so that
    products are cosines (Reimers & Gurevych 2019). The model runs without dropout. Raises ValueError for a row that is
    empty or not made of the vocabulary's ids, for another pooling, and for a decoder that needs an encoder.
    """
    if pooling not in ("mean", "first"):
        raise ValueError(f"pooling must be 'mean' or 'first', got {pooling!r}")
    if not rows:
        raise ValueError("there is nothing to embed: give at least one text")
    ids, mask = pad_right([checked(row, i, transformer.config) for i, row in enumerate(rows)], transformer.W_U.device)
    training = transformer.training
    try:
        states = transformer.eval().hidden(ids, mask, looks)
    finally:
        transformer.train(training)
    real = None if mask is None else mask.bool()
    vectors = _mean(states, real) if pooling == "mean" else first_token(states, real)
    return F.normalize(vectors, dim=-1) if unit else vectors


def _mean(states: Float[Tensor, "N T D"], mask: Bool[Tensor, "N T"] | None) -> Float[Tensor, "N D"]:
    if mask is None:
        return states.mean(1)
    return states.masked_fill(~mask[..., None], 0).sum(1) / mask.sum(1, keepdim=True)

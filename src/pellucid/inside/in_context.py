"""Losses token by token, and what a model learns within a text."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..model.flow import Looks
from ..model.place import place_of
from ..model.transformer import Transformer


@torch.no_grad()
def token_losses(
    transformer: Transformer,
    ids: Int[Tensor, "B T"],
    mask: Tensor | None = None,
    looks: Looks | None = None,
    source: Tensor | None = None,
) -> Float[Tensor, "B T"]:
    """-ln p, in nats, of each token given those before it, by its position in its own text: NaN at 0 and past the end.

    `mask` marks padding on either side with 0; `looks` may edit the pass. Raises ValueError for a model whose positions
    see later ones.
    """
    if not transformer.config.causal:
        raise ValueError("positions of this model see later ones: it has no loss of a token given those before it")
    logits = transformer(ids, mask, looks, source=source)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    place = place_of((ids.shape[0], ids.shape[1]), mask, ids.device)
    real = torch.ones_like(ids, dtype=torch.bool) if place.real is None else place.real
    losses = torch.full(ids.shape, torch.nan, dtype=logits.dtype, device=ids.device)
    for row in range(ids.shape[0]):
        columns = real[row].nonzero().flatten()
        scores, after = logits[row, columns[:-1]], ids[row, columns[1:], None]
        losses[row, 1 : len(columns)] = scores.logsumexp(-1) - scores.gather(1, after)[:, 0]
    return losses


def in_context_score(losses: Float[Tensor, "B T"], late: int = 500, early: int = 50) -> float:
    """Mean loss at position `late` minus that at position `early` (Olsson et al. 2022): more negative is better.

    Only rows that reach `late` count. Raises ValueError where none does.
    """
    if not 1 <= early < late < losses.shape[1] or bool(losses[:, late].isnan().all()):
        raise ValueError(f"positions 1 <= early < late within a text are needed, got early={early} and late={late}")
    long = losses[~losses[:, late].isnan()]
    return float((long[:, late] - long[:, early]).mean())


def induction_loss(losses: Float[Tensor, "B T"], period: int, start: int = 1) -> float:
    """Mean loss over the second copy from its second token on, the first copy beginning at position `start`.

    Its first token could not be known. Raises ValueError where the text ends before.
    """
    first, end = start + period + 1, start + 2 * period
    if not period >= 2 or not start >= 0 or end > losses.shape[1]:
        raise ValueError(f"two copies of {period} tokens from {start} on do not fit in {losses.shape[1]} positions")
    return float(losses[:, first:end].mean())

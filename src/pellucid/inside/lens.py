"""What the model, or any depth of it, would say next."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..views.table import Table
from .reading import Point, state_sites


def top(point: Point, k: int) -> Table:
    """The k most probable next tokens (of a bidirectional model: tokens at this position), most probable first."""
    vocab = point.logits.numel()
    if not 1 <= k <= vocab:
        raise ValueError(f"k must lie in 1..{vocab} (the vocabulary), got {k}")
    chances = _probabilities(point.logits)
    ids = chances.topk(k).indices.tolist()
    rows = tuple((rank, point.label(i), i, float(chances[i]), float(point.logits[i])) for rank, i in enumerate(ids, 1))
    title = "next token" if point.transformer.config.causal else "token at this position"
    return Table(title, ("rank", "token", "id", "probability", "logit"), rows)


def lens(point: Point, token: int | None) -> Table:
    """The logit lens (nostalgebraist 2020): softmax(norm_f(x_l) W_U) of the state x_l before each block and at the end.

    The final norm (and BERT's head) takes fresh statistics of x_l, so the last row is the model's own distribution.
    Columns: depth, the site, the most probable token there and its probability, then the followed token's probability
    and rank (1 is the most probable), and the entropy in nats.
    """
    followed = int(point.logits.argmax()) if token is None else token
    rows = []
    for index, site in enumerate(state_sites(point.transformer)):
        if not site.endswith(".stream"):
            continue
        logits = point.unembed(point.state(index))
        chances = _probabilities(logits)
        best = int(logits.argmax())
        rank = 1 + int((logits > logits[followed]).sum())
        entropy = float(torch.special.entr(chances).sum())
        depth = len(rows)
        rows.append((depth, site, point.label(best), float(chances[best]), float(chances[followed]), rank, entropy))
    name = point.label(followed)
    columns = ("depth", "site", "top token", "probability", f"p({name})", f"rank({name})", "entropy")
    return Table("what each depth would say", columns, tuple(rows))


def _probabilities(logits: Float[Tensor, "V"]) -> Float[Tensor, "V"]:
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)

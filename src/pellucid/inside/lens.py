"""What the model, or any depth of it, would say next."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.transformer import Transformer
from ..views.table import Table
from .reading import Point, state_sites


@runtime_checkable
class Translator(Protocol):
    """What makes of a state at some depth what the final state would be: a lens that was fitted to a model."""

    @property
    def name(self) -> str: ...
    def check(self, layers: int, width: int) -> None: ...
    def __call__(self, depth: int, state: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]: ...


def top(point: Point, k: int) -> Table:
    """The k most probable next tokens (of a bidirectional model: tokens at this position), most probable first."""
    vocab = point.logits.numel()
    if not isinstance(k, int) or not 1 <= k <= vocab:
        raise ValueError(f"k must lie in 1..{vocab} (the vocabulary), got {k}")
    chances = log_probabilities(point.logits).exp()
    ids = chances.topk(k).indices.tolist()
    rows = tuple((rank, point.label(i), i, float(chances[i]), float(point.logits[i])) for rank, i in enumerate(ids, 1))
    title = "next token" if point.transformer.config.causal else "token at this position"
    return Table(title, ("rank", "token", "id", "probability", "logit"), rows)


def lens(point: Point, token: int | None, tuned: Translator | None = None) -> Table:
    """The logit lens (nostalgebraist 2020): softmax(norm_f(x_l) W_U) of the state x_l before each block and at the end.

    The final norm (and BERT's head) takes fresh statistics of x_l, so the last row is the model's own distribution.
    A `tuned` lens is asked what it makes of x_l first; of the last state it makes nothing. Columns: depth, the site,
    the most probable token there and its probability, then the followed token's probability and rank (1 is the most
    probable), the entropy, and KL(model || depth), both in nats.
    """
    followed = int(point.logits.argmax()) if token is None else token
    if tuned is not None:
        tuned.check(len(point.transformer.blocks), point.transformer.config.d_model)
    final, rows = log_probabilities(point.logits), []
    for depth, index in enumerate(depths(point.transformer)):
        state = point.state(index)
        logits = point.unembed(state if tuned is None else tuned(depth, state))
        logs = log_probabilities(logits)
        chances, best = logs.exp(), int(logits.argmax())
        rank = 1 + int((logits > logits[followed]).sum())
        entropy = float(torch.special.entr(chances).sum())
        said = point.label(best), float(chances[best]), float(chances[followed]), rank, entropy
        site = state_sites(point.transformer)[index]
        rows.append((depth, site, *said, float(divergence(final, logs))))
    name = point.label(followed)
    columns = ("depth", "site", "top token", "probability", f"p({name})", f"rank({name})", "entropy", "KL")
    title = "what each depth would say" + ("" if tuned is None else f" ({tuned.name})")
    return Table(title, columns, tuple(rows))


def depths(transformer: Transformer) -> list[int]:
    """Which of the states lenses are taken of: those before each block, and the last."""
    return [index for index, site in enumerate(state_sites(transformer)) if site.endswith(".stream")]


def divergence(final: Float[Tensor, "*rows V"], logs: Float[Tensor, "*rows V"]) -> Float[Tensor, "*rows"]:
    """KL(final || other) of log-probabilities, in nats; tokens that the first never says count nothing."""
    return torch.where(final == -torch.inf, 0.0, final.exp() * (final - logs)).sum(-1)


def log_probabilities(logits: Float[Tensor, "*rows V"]) -> Float[Tensor, "*rows V"]:
    """Natural logarithms of probabilities, in at least fp32."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)

"""What other queries or keys would do through the softmax itself, not along its slope (AtP*, Kramár et al. 2024).

Axes: B batch, T position, S key position, H query heads, G key-value heads, K head width.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.place import Place
from .gradients import Gradients
from .reading import chain
from .run import Run


def softmax_scores(
    base: Run, value: Float[Tensor, "B P h K"], site: str, gradient: Gradients
) -> Float[Tensor, "B P h 1"]:
    """(pattern with this query or key alone replaced - pattern) . dm/d pattern, for each of a site; float64.

    Saturated attention hides what its slope cannot see: a pattern close to 0 or 1 does not answer to small changes.
    Raises ValueError for keys of a layer whose pattern was edited.
    """
    if base.source is not None and site.startswith(base.source.transformer.prefix):
        base = base.source
    stem, _, what = site.rpartition(".")
    slope = gradient[f"{stem}.pattern"].double()
    if what == "query":
        change = _with(base, site, value, f"{stem}.pattern") - base[f"{stem}.pattern"].double()
        return (slope * change).sum(-1).movedim(1, 2)[..., None]
    if f"{stem}.pattern" in base.plan.sites():
        raise ValueError(f"{stem}.pattern was edited, so no softmax of keys makes it: leave out softmax=True")
    scores, moved = base[f"{stem}.scores"].double(), _with(base, site, value, f"{stem}.scores")
    found = one_key_moved(scores, moved, slope).sum(2)
    return found.unflatten(1, (value.shape[2], -1)).sum(2).movedim(1, 2)[..., None]


def one_key_moved(
    scores: Float[Tensor, "B H T S"], moved: Float[Tensor, "B H T S"], slope: Float[Tensor, "B H T S"]
) -> Float[Tensor, "B H T S"]:
    """What a softmax with one score moved gives along a slope, less what it gave; for each of the scores by itself.

    With one score moved, the weight p of its key becomes q and all others keep their shares among themselves, so the
    change is (q - p) (slope - mean slope of the others). All in logarithms: a pattern may be all on one key.
    """
    others = _all_but_one(scores)
    least = slope.amin(-1, keepdim=True)
    mean = (_all_but_one(scores + (slope - least).log()) - others).exp() + least
    change = (moved - others).sigmoid() - (scores - others).sigmoid()
    return torch.where(scores.isinf() | others.isinf(), 0.0, change * (slope - mean))


def _all_but_one(x: Float[Tensor, "B H T S"]) -> Float[Tensor, "B H T S"]:
    """The logarithm of the sum of exponentials of all keys but each."""
    nothing = torch.full_like(x[..., :1], -torch.inf)
    before = torch.cat((nothing, x.logcumsumexp(-1)[..., :-1]), -1)
    after = torch.cat((nothing, x.flip(-1).logcumsumexp(-1)[..., :-1]), -1).flip(-1)
    return torch.logaddexp(before, after)


def _with(base: Run, site: str, value: Tensor, wanted: str) -> Tensor:
    """A site as it would be with another value at one before it, in float64."""

    def put(_value: Tensor, _place: Place, _keys: Place | None) -> Tensor:
        return value

    here = base.present()
    with torch.no_grad(), base.precision.restored():
        return base.recording.read(wanted, replace(here, looks=chain(here.looks or {}, {site: put}))).double()

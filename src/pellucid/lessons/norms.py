"""Layer norm step by step, what undoes it, RMSNorm, and what batch norm does differently."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..inside.trace import Trace
from ..model.config import RMSNorm
from ..model.layers import Norm
from ..views import Table
from .drawing import Bars
from .found import Found
from .small import site

EXAMPLE = (2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0)
_SHOWN = 8


@dataclass(frozen=True)
class Steps:
    """What a norm does to one vector, step by step: gain * (x - mean) / sqrt(mean of (x - mean)^2 + eps) + shift.

    The variance is biased: divided by the number of features. RMSNorm takes no mean, so its `mean` is 0.
    """

    x: Float[Tensor, "D"]
    mean: float
    variance: float
    centred: Float[Tensor, "D"]
    scaled: Float[Tensor, "D"]
    result: Float[Tensor, "D"]
    sigma: float


def steps(
    x: Sequence[float] | Float[Tensor, "D"],
    gain: Float[Tensor, "D"] | None = None,
    shift: Float[Tensor, "D"] | None = None,
    eps: float = 0.0,
    centre: bool = True,
) -> Steps:
    """The steps of layer norm, or with `centre` False of RMSNorm. Raises ValueError where it would divide by zero."""
    x = torch.as_tensor(x, dtype=torch.float64)
    if x.ndim != 1 or not len(x) or not bool(x.isfinite().all()):
        raise ValueError(f"a norm is of one vector of finite numbers, got {x.tolist()}")
    mean = float(x.mean()) if centre else 0.0
    centred = x - mean
    variance = float(centred.square().mean())
    sigma = (variance + eps) ** 0.5
    if sigma == 0.0:
        what = "all numbers are equal" if centre else "all numbers are zero"
        raise ValueError(f"{what}, so that the norm divides by zero: give eps, as models do (1e-5)")
    scaled = centred / sigma
    result = scaled if gain is None else scaled * gain.double()
    return Steps(x, mean, variance, centred, scaled, result if shift is None else result + shift.double(), sigma)


def undone(found: Steps) -> Float[Tensor, "D"]:
    """What a gain of sigma and a shift of the mean make of the scaled vector: the vector itself."""
    return found.scaled * found.sigma + found.mean


def layer_norm(x: Sequence[float] = EXAMPLE, eps: float = 0.0) -> Found:
    """Layer norm of a vector, step by step, with gain 1 and shift 0; and undone by gain = sigma, shift = mean."""
    return _shown(steps(x, eps=eps), "layer norm", eps)


@torch.no_grad()
def layer_norm_on(trace: Trace, layer: int = 0, row: int = 0, position: int = -1) -> Found:
    """The norm before (post-norm: after) a model's attention, of the row's last token; beside the model's own."""
    name = site(trace, f"{layer}.attention")
    at, step = next(
        (at, step) for at, step in enumerate(trace.transformer.steps) if any(part.name == name for part in step.parts)
    )
    norm = step.after or step.shared or step.parts[0].norm
    assert norm is not None, "a step has a norm before it, after it or in its part"
    read = f"{name}.sum" if step.after is not None else step.state
    made = trace.states[at + 1] if step.after is not None else trace[f"{name}.input"]
    column = trace.column(row, position)
    found, own = of_norm(norm, trace[read][row, column]), made[row, column].cpu().double()
    kind = "RMSNorm" if isinstance(norm.record, RMSNorm) else "layer norm"
    note = f" The model's own: at most {float((own - found.result).abs().max()):.1e} away."
    return _shown(found, f"{kind} of {read}", norm.record.eps, note)


def of_norm(norm: Norm, x: Float[Tensor, "D"]) -> Steps:
    """The steps of a model's norm."""
    gain, shift = (None if part is None else part.detach().cpu() for part in (norm.weight, norm.bias))
    return steps(x.detach().cpu().double(), gain, shift, norm.record.eps, not isinstance(norm.record, RMSNorm))


def _shown(found: Steps, title: str, eps: float, note: str = "") -> Found:
    columns = (found.x, found.centred, found.centred.square(), found.scaled, found.result, undone(found))
    rows = tuple(zip(range(len(found.x)), *(column.tolist() for column in columns), strict=True))
    names = ("feature", "x", "x - mean", "squared", "/ sigma", "result", "undone")
    said = f"mean {found.mean:g}, variance {found.variance:g}, eps {eps:g}, sigma {found.sigma:g}."
    said += f" The first {_SHOWN} of {len(rows)} features." if len(rows) > _SHOWN else ""
    said += " Undone: a gain of sigma and a shift of the mean bring x back."
    table = Table(title, names, rows[:_SHOWN], said + note)
    return Found((table,), Bars(table, "result"))


def rms_norm(x: Sequence[float] = EXAMPLE, eps: float = 0.0) -> Found:
    """RMSNorm of a vector (no mean taken, no shift), beside layer norm of it and of it moved by 10."""
    moved = [value + 10.0 for value in x]
    columns = (
        torch.as_tensor(x, dtype=torch.float64),
        steps(x, eps=eps, centre=False).result,
        steps(moved, eps=eps, centre=False).result,
        steps(x, eps=eps).result,
        steps(moved, eps=eps).result,
    )
    rows = tuple(zip(range(len(x)), *(column.tolist() for column in columns), strict=True))
    names = ("feature", "x", "RMSNorm", "of x + 10", "layer norm", "of x + 10 ")
    note = "A number added to all features changes RMSNorm and not layer norm, which takes the mean away."
    return Found((Table("RMSNorm beside layer norm", names, rows, note),))


def batch_norm(seed: int = 0) -> Found:
    """Another example in the batch changes what batch norm makes of this one, and not what layer norm does."""
    batch = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    other = batch.clone()
    other[1:] = other[1:] * 3 + 1
    layer = [F.layer_norm(each, (6,))[0] for each in (batch, other)]
    over = [F.batch_norm(each, None, None, training=True)[0] for each in (batch, other)]
    rows = tuple(zip(range(6), *(column.tolist() for column in (batch[0], *layer, *over)), strict=True))
    names = ("feature", "x", "layer norm", "other batch", "batch norm", "other batch ")
    changed = [float((a - b).abs().max()) for a, b in (layer, over)]
    note = (
        f"Largest change when the other three examples change: layer norm {changed[0]:g}, batch norm {changed[1]:.3f}."
    )
    return Found((Table("the first of four examples", names, rows, note),))

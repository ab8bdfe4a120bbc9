"""Linear probes: whether a label can be read off a value by one matrix, on texts that the probe was not fitted on.

A probe is scored beside chance: the same fit with the labels shuffled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ..views.table import Table
from .edits import Choice, Edit, add
from .errors import LedgerError, SiteError
from .ledger import Ledger
from .reading import state_sites
from .trace import Trace

Method = Literal["ridge", "logistic", "difference"]


@dataclass(frozen=True)
class Fit:
    """How a probe is fitted.

    "ridge": least squares to +1 for the own label and 0 for the others, in closed form; "logistic": multinomial, by
    LBFGS; "difference": to the nearest of the labels' means. `penalty` weighs the squared weights, in units of the
    values' mean variance. `held_out` is the share of examples, or of `groups`, that is kept for scoring; `nulls` is how
    often the labels are shuffled for chance.
    """

    method: Method = "ridge"
    penalty: float = 1e-2
    held_out: float = 0.25
    nulls: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise ValueError(f"a probe is fitted by {', '.join(get_args(Method))}, got {self.method!r}")
        if not self.penalty > 0 or not 0 < self.held_out < 1 or self.nulls < 1:
            raise ValueError(
                "penalty must be above 0, held_out between 0 and 1, nulls at least 1, "
                f"got {self.penalty}, {self.held_out}, {self.nulls}"
            )


@dataclass(frozen=True, eq=False, repr=False)
class Probe:
    """The score of label c is `weights`[c] . x + `bias`[c] of a value x of `site`; the highest is what the probe says.

    `accuracy` is the share of the `n` held-out examples that it says right, `null` the mean of that with shuffled
    labels and `null_sd` its standard deviation over shufflings; `fitted` is how many examples it was fitted on.
    """

    site: str
    labels: tuple[int, ...]
    weights: Float[Tensor, "C D"]
    bias: Float[Tensor, "C"]
    accuracy: float
    null: float
    null_sd: float
    n: int
    fitted: int
    fit: Fit

    @property
    def direction(self) -> Float[Tensor, "D"]:
        """Of two labels: along which values go from the first to the second, in the space of `site`; length as fitted.

        Raises ValueError for more labels: `weights` has a row for each.
        """
        if len(self.labels) != 2:
            raise ValueError(f"a direction goes from one of two labels to the other, and there are {self.labels}")
        return self.weights[1] - self.weights[0]

    def says(self, values: Float[Tensor, "N D"]) -> Int[Tensor, "N"]:
        """The label of each value."""
        at = _scores(values.double().cpu(), self.weights, self.bias).argmax(-1)
        return torch.tensor(self.labels)[at]

    def ledger(self, trace: Trace, row: int = 0, position: int = -1, by: str = "sublayer") -> Ledger:
        """Who wrote what the probe reads. Raises LedgerError for a probe of another value than the final stream."""
        last = state_sites(trace.transformer)[-1]
        if self.site != last:
            raise LedgerError(f"a ledger is of the final stream: fit the probe on {last}, not on {self.site}")
        return trace.ledger(direction=self.direction, by=by, row=row, position=position)

    def edit(self, factor: float, **where: Choice) -> Edit:
        """The edit that adds the unit direction, times `factor`, to the probe's site."""
        return add(self.site, factor * F.normalize(self.direction, dim=0), **where)

    def table(self) -> Table:
        """The probe's scores, as a table of one row."""
        columns = ("site", "method", "accuracy", "null", "null sd", "n", "fitted on")
        row = (self.site, self.fit.method, self.accuracy, self.null, self.null_sd, self.n, self.fitted)
        return Table("probe", columns, (row,))

    def to_json(self) -> dict[str, object]:
        """The probe as plain data."""
        scores = {name: vars(self)[name] for name in ("accuracy", "null", "null_sd", "n", "fitted")}
        numbers = {"weights": self.weights.tolist(), "bias": self.bias.tolist()}
        return {"site": self.site, "labels": list(self.labels), "fit": dict(vars(self.fit)), **scores, **numbers}

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__


def values_at(trace: Trace, site: str, positions: Sequence[int | Sequence[int]]) -> Float[Tensor, "N D"]:
    """A site's values at chosen tokens, for each row one position or several; axes after B and T in one row.

    Rows come one after another. Raises SiteError for a site without positions, or with keys.
    """
    value = trace[site]
    if value.ndim < 3 or value.shape[:2] != trace.ids.shape or site.endswith((".scores", ".pattern")):
        raise SiteError(f"a probe reads a vector at each position, which {site} has not")
    if len(positions) != len(value):
        raise ValueError(f"the trace has {len(value)} rows, got positions for {len(positions)}")
    found = []
    for row, chosen in enumerate(positions):
        every = [chosen] if isinstance(chosen, int) else chosen
        found += [value[row, trace.column(row, at)].flatten() for at in every]
    return torch.stack(found)


def probe(
    values: Float[Tensor, "N D"],
    labels: Sequence[int] | Tensor,
    site: str = "",
    fit: Fit | None = None,
    groups: Sequence[int] | None = None,
) -> Probe:
    """Fit a probe to values and their labels (whole numbers), in float64, and score it on those held out.

    Examples of one group (tokens of one text) are all fitted on or all held out. Raises ValueError where there are too
    few of them, or where a label is not among those fitted on.
    """
    fit = fit or Fit()
    x, given = values.detach().double().cpu(), torch.as_tensor(labels).cpu()
    names, y = given.unique(return_inverse=True)
    _check(x, given, len(names))
    train, test = _split(torch.arange(len(x)) if groups is None else torch.as_tensor(groups), fit)
    if len(y[train].unique()) < len(names):
        raise ValueError(f"not all of the labels {names.tolist()} are among the {len(train)} examples fitted on: more")
    weights, bias = _fitted(x[train], y[train], len(names), fit)
    accuracy = _accuracy(x[test], y[test], weights, bias)
    draw, nulls = torch.Generator().manual_seed(fit.seed + 1), []
    for _ in range(fit.nulls):
        shuffled = y[train][torch.randperm(len(train), generator=draw)]
        nulls.append(_accuracy(x[test], y[test], *_fitted(x[train], shuffled, len(names), fit)))
    null, spread = torch.tensor(nulls).double(), len(nulls) > 1
    found = (accuracy, float(null.mean()), float(null.std()) if spread else float("nan"), len(test), len(train))
    return Probe(site, tuple(names.tolist()), weights, bias, *found, fit)


def _check(x: Tensor, labels: Tensor, names: int) -> None:
    if labels.shape != (len(x),) or labels.dtype.is_floating_point:
        raise ValueError(f"each of the {len(x)} values needs one label, a whole number, got {tuple(labels.shape)}")
    if names < 2 or len(x) < 4:
        raise ValueError(f"a probe needs at least 4 examples and 2 labels, got {len(x)} and {names}")
    if not bool(x.isfinite().all()):
        raise ValueError("the values are not all finite")


def _split(groups: Tensor, fit: Fit) -> tuple[Tensor, Tensor]:
    """Which examples are fitted on, and which are held out; whole groups of them."""
    names, at = groups.unique(return_inverse=True)
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(fit.seed))
    kept = max(1, round(fit.held_out * len(names)))
    held = torch.isin(at, order[:kept])
    if len(names) < 2 or bool(held.all()):
        raise ValueError(f"there are {len(names)} groups, and {kept} would be held out: give more, or hold out less")
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def _fitted(x: Tensor, y: Tensor, n_labels: int, fit: Fit) -> tuple[Float[Tensor, "C D"], Float[Tensor, "C"]]:
    """Weights and biases: of values about their mean, put back together with the mean."""
    centre = x.mean(0)
    around = x - centre
    variance = float(around.square().sum() / len(x) / x.shape[1]) or 1.0
    match fit.method:
        case "ridge":
            weights, bias = _ridge(around, F.one_hot(y, n_labels).double(), fit.penalty * len(x) * variance)
        case "logistic":
            weights, bias = _logistic(around / variance**0.5, y, n_labels, fit.penalty)
            weights = weights / variance**0.5
        case "difference":
            weights = torch.stack([around[y == label].mean(0) for label in range(n_labels)])
            bias = -weights.square().sum(1) / 2
    return weights, bias - weights @ centre


def _ridge(x: Tensor, targets: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """(X^T X + penalty I)^-1 X^T Y, or the same by the N x N matrix where that is the smaller one (Hoerl 1970)."""
    mean = targets.mean(0)
    n, d = x.shape
    if d <= n:
        weights = torch.linalg.solve(x.T @ x + penalty * torch.eye(d, dtype=x.dtype), x.T @ (targets - mean))
    else:
        weights = x.T @ torch.linalg.solve(x @ x.T + penalty * torch.eye(n, dtype=x.dtype), targets - mean)
    return weights.T, mean


def _logistic(x: Tensor, y: Tensor, n_labels: int, penalty: float) -> tuple[Tensor, Tensor]:
    """The least mean cross-entropy plus penalty / 2 times the squared weights, from zero; the bias is not penalised."""
    weights = torch.zeros(n_labels, x.shape[1], dtype=x.dtype, requires_grad=True)
    bias = torch.zeros(n_labels, dtype=x.dtype, requires_grad=True)
    both, close = [weights, bias], 1e-14  # the default stops where the loss still falls
    search = torch.optim.LBFGS(
        both, max_iter=500, tolerance_grad=1e-8, tolerance_change=close, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        search.zero_grad()
        found = F.cross_entropy(_scores(x, weights, bias), y) + penalty / 2 * weights.square().sum()
        found.backward()
        return found

    with torch.enable_grad():
        search.step(loss)
    return weights.detach(), bias.detach()


def _scores(x: Tensor, weights: Tensor, bias: Tensor) -> Float[Tensor, "N C"]:
    return x @ weights.T + bias


def _accuracy(x: Tensor, y: Tensor, weights: Tensor, bias: Tensor) -> float:
    return float((_scores(x, weights, bias).argmax(-1) == y).double().mean())

"""Scores of attention heads, each with what it would be where there is nothing to find.

Patterns are read from a trace one layer at a time. The null of an attention score is exact and needs no sampling: if
each query's keys were drawn anew among those that it may see, the score's mean would be that of uniform attention,
whatever the head, and its spread follows from how sharp the head's pattern is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..model.place import visible
from ..views.table import Table
from .head_targets import Target
from .trace import Trace

_NO_SPREAD = 1e-6  # a uniform pattern has the same score wherever the targets are, but for rounding


@dataclass(frozen=True, eq=False)
class HeadScores:
    """One number for every head, its null baseline and the spread of that, and how many cases it is the mean of.

    `null` is the score where there is nothing to find and `sd` its standard deviation (NaN where none is defined);
    `control`, where there is one, is the same score in a run that has nothing to find, or beside what is looked for.
    NaN: a head without cases.
    """

    name: str
    formula: str
    score: Float[Tensor, "L H"]
    null: Float[Tensor, "L H"]
    sd: Float[Tensor, "L H"]
    n: Int[Tensor, "L H"]
    control: Float[Tensor, "L H"] | None = None

    @property
    def z(self) -> Float[Tensor, "L H"]:
        """How many standard deviations of the null lie between it and the score; NaN where it has no spread."""
        return (self.score - self.null) / self.sd.where(self.sd > _NO_SPREAD, torch.nan)

    def table(self) -> Table:
        """Every head, in the order of the layers."""
        layers, heads = self.score.shape
        return self.of([(layer, head) for layer in range(layers) for head in range(heads)])

    def of(self, heads: Sequence[tuple[int, int]]) -> Table:
        """Some heads (layer, head), in this order."""
        columns = ("layer", "head", "score", "null", "z", "n")
        columns = columns if self.control is None else (*columns, "control")
        return Table(f"{self.name} score", columns, tuple(self._row(*head) for head in heads), self.formula)

    def top(self, k: int = 10) -> Table:
        """The k heads that score highest; heads without a score come last."""
        order = self.score.nan_to_num(-torch.inf).flatten().argsort(descending=True, stable=True).tolist()
        return self.of([divmod(at, self.score.shape[1]) for at in order]).top(k)

    def to_json(self) -> dict[str, object]:
        """The scores as plain data."""
        return self.table().to_json()

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__

    def _row(self, layer: int, head: int) -> tuple[object, ...]:
        tensors = (self.score, self.null, self.z)
        cells = (layer, head, *(number(tensor[layer, head]) for tensor in tensors), int(self.n[layer, head]))
        return cells if self.control is None else (*cells, number(self.control[layer, head]))


def number(value: Tensor) -> float | None:
    """A cell of a table: None for NaN."""
    return None if bool(value.isnan()) else float(value)


def patterns(trace: Trace) -> Iterator[tuple[Float[Tensor, "B H T S"], Bool[Tensor, "B T S"]]]:
    """Each layer's pattern in float64, and which keys its queries may see. One layer is held at a time."""
    transformer, place = trace.transformer, trace.place
    for layer in range(transformer.config.n_layers):
        seen = visible(transformer.config.mask(layer), place, place).expand(trace.ids.shape[0], -1, -1)
        yield trace[f"{transformer.prefix}{layer}.attention.pattern"].double(), seen


def measure(trace: Trace, targets: Sequence[Target]) -> tuple[HeadScores, ...]:
    """The score of every head for each target: its attention to the target's keys, over queries that see any of them.

    Raises ValueError for a target that holds every key a query may see, which gives any head a score of 1, and for one
    of another shape than the trace.
    """
    rows, columns = trace.ids.shape
    for target in targets:
        if tuple(target.keys.shape) != (rows, columns, columns):
            raise ValueError(f"a target of this trace is {rows} x {columns} x {columns}, got {list(target.keys.shape)}")
    by_layer = [[attended(*found, target) for target in targets] for found in patterns(trace)]
    return tuple(_stacked(target, each) for target, each in zip(targets, zip(*by_layer, strict=True), strict=True))


def _stacked(target: Target, layers: Sequence[tuple[Tensor, Tensor, Tensor, int, bool]]) -> HeadScores:
    score, null, sd, n, trivial = zip(*layers, strict=True)
    if all(trivial) and any(n):
        raise ValueError(f"the target {target.name!r} holds every key that a query may see: any head would score 1")
    scores, cases = torch.stack(score), torch.tensor(n)[:, None].expand(-1, len(score[0]))
    return HeadScores(target.name, target.formula, scores, torch.stack(null), torch.stack(sd), cases)


def attended(
    pattern: Float[Tensor, "B H T S"], seen: Bool[Tensor, "B T S"], target: Target
) -> tuple[Float[Tensor, "H"], Float[Tensor, "H"], Float[Tensor, "H"], int, bool]:
    """Score, null and its standard deviation by head, the number of cases, and whether the target is all there is.

    For any patterns, a trace's or others; `seen` says which keys each query may see. Of N visible keys m are targets. A
    draw of m among N without replacement has the mean m / N of a row that sums to 1, and the variance
    m v (N - m) / (N - 1), v the variance of the row's entries.
    """
    keys = target.keys.to(seen.device) & seen
    m, N = keys.sum(-1).double(), seen.sum(-1).double()
    n = int((m > 0).sum() if target.reduce == "row_sum" else m.sum())
    weight = torch.tensor(n or torch.nan, dtype=torch.float64, device=seen.device)
    counted = m > 0
    N = N.where(counted, 1.0)  # of queries that are not counted, m = 0 makes everything 0
    score = (pattern * keys[:, None]).sum((0, 2, 3)) / weight
    null = (m / N).sum() / weight
    v = (pattern.square().sum(-1) / N[:, None] - N[:, None] ** -2).clamp(min=0)
    spread = (m * (N - m) / (N - 1).clamp(min=1))[:, None] * v
    sd = spread.sum((0, 2)).sqrt() / weight
    return score.cpu(), null.expand_as(score).cpu(), sd.cpu(), n, bool((m == N)[counted].all())


def spread(trace: Trace) -> tuple[HeadScores, HeadScores, HeadScores]:
    """How widely each head attends: entropy, entropy relative to its maximum, and distance.

    - entropy: mean over q of -sum of A ln A, in nats; the null is uniform attention, ln N with N visible keys (q + 1 in
      a causal model without padding).
    - relative entropy: mean over q with N > 1 of entropy / ln N; the null is 1.
    - distance: mean over q of sum of A[q, k] (q - k), in tokens, positive for looking back; the null is uniform
      attention.
    """
    by_layer = [_spread(pattern, seen, trace) for pattern, seen in patterns(trace)]
    formulas = {
        "entropy": "mean over q of -sum of A ln A, nats",
        "relative entropy": "mean over q of entropy / ln(visible keys)",
        "distance": "mean over q of sum of A[q, k] (q - k), tokens",
    }
    found = []
    for at, (name, formula) in enumerate(formulas.items()):
        score, null, n = zip(*(layer[at] for layer in by_layer), strict=True)
        stacked = torch.stack(score)
        nulls, cases = torch.stack(null)[:, None].expand_as(stacked), torch.tensor(n)[:, None].expand_as(stacked)
        found.append(HeadScores(name, formula, stacked, nulls, torch.full_like(stacked, torch.nan), cases))
    return found[0], found[1], found[2]


def _spread(
    pattern: Float[Tensor, "B H T S"], seen: Bool[Tensor, "B T S"], trace: Trace
) -> list[tuple[Tensor, Tensor, int]]:
    """Mean, uniform mean and number of queries, for entropy, relative entropy and distance."""
    N = seen.sum(-1).double()
    most = N.clamp(min=1).log()
    entropy = torch.special.entr(pattern).sum(-1)
    positions = trace.place.positions.expand(seen.shape[0], -1)
    back = (positions[:, :, None] - positions[:, None, :]).double()
    distance = (pattern * back[:, None]).sum(-1)
    uniform = (back * seen).sum(-1) / N.clamp(min=1)
    some, several = N > 0, N > 1
    relative = entropy / most.where(several, 1.0)[:, None]
    return [
        (*_means(entropy, most, some), int(some.sum())),
        (*_means(relative, torch.ones_like(most), several), int(several.sum())),
        (*_means(distance, uniform, some), int(some.sum())),
    ]


def _means(
    values: Float[Tensor, "B H T"], uniform: Float[Tensor, "B T"], counted: Bool[Tensor, "B T"]
) -> tuple[Float[Tensor, "H"], Float[Tensor, ""]]:
    n = counted.sum().double()  # 0 / 0 is NaN: no cases, no score
    return ((values * counted[:, None]).sum((0, 2)) / n).cpu(), ((uniform * counted).sum() / n).cpu()

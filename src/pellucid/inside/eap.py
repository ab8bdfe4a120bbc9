"""A score for every edge of the graph at once, by gradients: edge attribution patching.

Axes: M rows, S senders, R receivers, T position, D model width.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.attention import Attention, CrossAttention
from ..model.flow import Look, Pass
from ..model.place import Place
from ..model.transformer import Step, Transformer
from ..views.table import Table
from .aligned import Pair
from .edges import Wiring, read_metric
from .effects import Effects
from .errors import GraphError, MetricError
from .inputs import Part, project, read
from .metrics import Metric
from .reading import chain, state_sites
from .run import Run


@dataclass(frozen=True)
class Check:
    """One edge run by the engine: the metric's slope where it begins to be patched, and the whole change."""

    sender: str
    receiver: str
    slope: float
    patched: float


@dataclass(frozen=True, eq=False, repr=False)
class EdgeScores:
    """How much the metric is estimated to change by patching each edge, with the strongest edges run for comparison.

    `effects` holds a row for each sender and a column for each receiver, NaN where there is no edge. A score is an
    estimate by a straight line; `checks` say what the edge did when it was run: `slope` is what the line should be (the
    score of `points` = 0), `patched` what the metric really changed by.
    """

    effects: Effects
    checks: tuple[Check, ...] = ()

    @property
    def values(self) -> Float[Tensor, "S R"]:
        """The scores, in float64."""
        return self.effects.values

    def __getitem__(self, edge: tuple[str, str]) -> float:
        """The score of one edge, by the names of its sender and its receiver."""
        return self.effects[edge]

    def table(self) -> Table:
        """Every edge, sender by sender."""
        return self._with_checks(self.effects.table())

    def top(self, k: int = 10) -> Table:
        """The k edges whose scores are largest by size."""
        return self._with_checks(self.effects.top(k))

    def to_json(self) -> dict[str, object]:
        """The scores and the checks as plain data."""
        return {**self.effects.to_json(), "checks": [vars(check) for check in self.checks]}

    def _with_checks(self, table: Table) -> Table:
        if not self.checks:
            return table
        run = {(check.sender, check.receiver): (check.slope, check.patched) for check in self.checks}
        rows = tuple((*row, *run.get((str(row[0]), str(row[1])), (None, None))) for row in table)
        return replace(table, columns=(*table.columns, "slope", "patched"), rows=rows)

    def __str__(self) -> str:
        return str(self.top(20))

    __repr__ = __str__


def edge_scores(base: Run, source: Run, metric: Metric, points: int = 0, check: int = 0) -> EdgeScores:
    """The score of every edge: (what s writes in the source - in the base) . d metric / d (input of r), summed.

    With `points` 0 the gradient is taken in the base run (EAP, Syed et al. 2023): one pass forward and one back, and
    each score is the slope of the metric where that edge begins to be patched. With `points` k it is averaged over the
    midpoints of k equal stretches between the embeddings of the two runs (EAP-IG, Hanna et al. 2024). Then the edges
    out of the embeddings add up to m_source - m_base as k grows; other cuts of the graph need not, as the stream does
    not go straight from one run to the other there. The input of r is the stream before its norm, and the scores are
    averaged over the rows. `check` runs the k edges with the largest scores. Raises GraphError as `path_patch` does.
    """
    if points < 0 or check < 0:
        raise GraphError(f"points and check must be 0 or more, got {points} and {check}")
    wiring = Wiring(base, source, metric)
    exists = wiring.graph.exists
    found = torch.zeros(exists.shape, dtype=torch.float64)
    at = [0.0] if points == 0 else [(i + 0.5) / points for i in range(points)]
    for pair in wiring.pairs:
        for share in at:
            for receivers, gradient in _gradients(pair, metric, share):
                some = int(exists[:, receivers.start].sum())
                scores = torch.einsum("mstd,mrtd->sr", pair.change[:, :some], gradient)
                found[:some, receivers] += scores.double().cpu()
        if not wiring.keeps:
            pair.forget()
    found = (found / (len(at) * base.ids.shape[0])).where(exists, torch.nan)
    effects = Effects(
        f"{'edge attribution patching' if points == 0 else f'EAP-IG over {points} points'}, {metric.name}",
        tuple(sender.name for sender in wiring.graph.senders),
        tuple(receiver.name for receiver in wiring.graph.receivers),
        found,
        "estimates of m_patched - m_base" + ("; slope and patched are of the edge as it was run" if check else ""),
        float(metric.of(base).double().mean()),
        float(metric.of(source).double().mean()),
        ("sender", "receiver", "score"),
    )
    return EdgeScores(effects, _checks(wiring, effects, check) if check else ())


def _gradients(pair: Pair, metric: Metric, share: float) -> Iterator[tuple[slice, Float[Tensor, "M R T D"]]]:
    """The gradient at each receiver's input, some receivers after others, a share of the way from base to source."""
    transformer, here = pair.base.recording.transformer, pair.base.here
    start = pair.base.recording.states[0]
    start = (start + share * (pair.other.recording.states[0] - start)).detach().requires_grad_()
    kept: dict[str, Tensor] = {}
    looks = chain(here.looks or {}, {site: _keeper(site, kept) for site in _leaves(transformer)})
    with torch.enable_grad(), pair.base.run.precision.restored():
        watched = replace(here, looks=looks)
        transformer.run(start, watched)
        end = kept[state_sites(transformer)[-1]]
        total = read_metric(pair, metric, end, here).sum()
        if not total.requires_grad:
            raise MetricError(f"the metric {metric.name!r} must be differentiable in the logits")
        last = len(pair.graph.receivers) - 1
        wanted = {site: kept[site] for site in _inner(transformer)}
        found = torch.autograd.grad(total, [end, *wanted.values()], allow_unused=True, materialize_grads=True)
        yield slice(last, last + 1), found[0][:, None]
        by_site = dict(zip(wanted, found[1:], strict=True))
        for step in transformer.steps:
            for part in step.parts:
                _, receivers = pair.graph.of_part(part.name)
                state = kept[step.state].detach()
                yield receivers, _to_inputs(step, part, state, receivers, (here, by_site))


def _to_inputs(
    step: Step, part: Part, state: Float[Tensor, "M T D"], receivers: slice, known: tuple[Pass, dict[str, Tensor]]
) -> Float[Tensor, "M R T D"]:
    """Gradients at what a part makes of the stream as gradients at what each of its receivers reads of it."""
    here, by_site = known
    wide = state[:, None].expand(-1, receivers.stop - receivers.start, -1, -1).clone().requires_grad_()
    normed = read(step, part, wide, here)
    made = project(part, normed, here) if isinstance(part, Attention) else [normed[:, 0]]
    gradients = [by_site[site] for site in _made(part)]
    pairs = [(value, gradient) for value, gradient in zip(made, gradients, strict=True) if value.requires_grad]
    if not pairs:
        return torch.zeros_like(wide)
    values, outer = zip(*pairs, strict=True)
    (found,) = torch.autograd.grad(values, wide, outer, allow_unused=True, materialize_grads=True)
    return found


def _made(part: Part) -> list[str]:
    """The sites that a part's receivers make."""
    if not isinstance(part, Attention):
        return [f"{part.name}.input"]
    own = ("query",) if isinstance(part, CrossAttention) else ("query", "key", "value")
    return [f"{part.name}.{what}" for what in own]


def _inner(transformer: Transformer) -> list[str]:
    return [site for step in transformer.steps for part in step.parts for site in _made(part)]


def _leaves(transformer: Transformer) -> list[str]:
    """What is kept of a pass: the states, and what every receiver makes."""
    return [*state_sites(transformer), *_inner(transformer)]


def _keeper(site: str, kept: dict[str, Tensor]) -> Look:
    def keep(value: Tensor, _place: Place, _keys: Place | None) -> Tensor:
        # A copy, as both parts of a parallel block may be given one tensor; and an edit may have put a constant here.
        kept[site] = value.clone() if value.requires_grad else value.detach().clone().requires_grad_()
        return kept[site]

    return keep


def _checks(wiring: Wiring, effects: Effects, k: int) -> tuple[Check, ...]:
    """The k edges with the largest scores, run with a little of their change on either side, and with all of it."""
    edges = [(str(row[0]), str(row[1])) for row in effects.top(k)]
    masks = torch.stack([wiring.graph.mask([edge]) for edge in edges]).double()
    little = 1e-4 if wiring.base.states[0].dtype == torch.float64 else 1e-2
    up, down, whole, none = wiring.mean(
        torch.cat((little * masks, -little * masks, masks, torch.zeros_like(masks)))
    ).chunk(4)
    slopes, patched = ((up - down) / (2 * little)).tolist(), (whole - none).tolist()
    return tuple(Check(*edge, slope, change) for edge, slope, change in zip(edges, slopes, patched, strict=True))

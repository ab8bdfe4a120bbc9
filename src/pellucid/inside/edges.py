"""The model run with some edges of its graph exchanged: the one engine behind path patching and circuits.

A run of the base's input in which each receiver reads the stream as it is in this run, plus, for every sender whose
edge to it is patched, what that sender writes in the other run less what it writes in this one. All that follows runs
on with what was made of it. An edge may also be patched by a share, from 0 (not) to 1.

Axes: E sets of edges, M rows, N runs at once (sets x rows), S senders, R receivers, T position, D model width.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.attention import Attention
from ..model.flow import Look, Pass
from ..model.place import Place, columns
from ..model.transformer import Step
from .aligned import Pair, pairs
from .graph import Graph, graph_of
from .inputs import Part, attend, read
from .metrics import Metric, check_metric
from .reading import chain
from .run import Run

BUDGET = 256 * 2**20  # bytes that the runs of one batch may take


def run_edges(
    base: Run, other: Run, patched: Sequence[Iterable[tuple[str, str]]], metric: Metric, budget: int = BUDGET
) -> Float[Tensor, "E B"]:
    """The metric of every row of the base, run once for each of several sets of patched edges.

    An edge is (sender, receiver), as `graph_of(transformer)` names them; over a patched one goes what the sender writes
    in the `other` run, over all others what it writes in this one. Sets run side by side as one batch, as many as
    `budget` bytes hold, and each only from its first patched receiver on. Raises GraphError for edges that the model
    does not have, and for runs that cannot be compared.
    """
    wiring = Wiring(base, other, metric, budget)
    return wiring.run(torch.stack([wiring.graph.mask(edges) for edges in patched]).double())


@dataclass(frozen=True, eq=False)
class Wiring:
    """Two runs of a model, ready to be run with edges exchanged between them."""

    base: Run
    other: Run
    metric: Metric
    budget: int = BUDGET
    pairs: tuple[Pair, ...] = field(init=False)
    keeps: bool = field(init=False)  # whether the writes of all rows are small enough to stay in memory

    def __post_init__(self) -> None:
        check_metric(self.metric, self.base, self.other)
        senders = len(graph_of(self.base.transformer).senders)
        a_row = 3 * senders * self.base.states[0][0].nbytes
        object.__setattr__(self, "keeps", a_row * len(self.base.ids) <= 4 * self.budget)
        object.__setattr__(self, "pairs", tuple(pairs(self.base, self.other, max(1, self.budget // a_row))))

    @property
    def graph(self) -> Graph:
        """The model's senders, receivers and edges."""
        return self.pairs[0].graph

    def run(self, shares: Float[Tensor, "E S R"]) -> Float[Tensor, "E B"]:
        """The metric of every row for each set of edges, given as each edge's share of the other run's write."""
        shares = shares * self.graph.exists
        found = torch.zeros(len(shares), self.base.ids.shape[0], dtype=torch.float64)
        state = torch.tensor([receiver.state for receiver in self.graph.receivers])
        begins = torch.where(shares.any(1), state, self.graph.receivers[-1].state).amin(1)
        for pair in self.pairs:
            for begin in begins.unique().tolist():
                same = (begins == begin).nonzero().flatten()
                for some in same.split(max(1, self.budget // _bytes(pair, shares[same], begin))):
                    with torch.no_grad(), self.base.precision.restored():
                        values = _Batch(pair, shares[some], begin).metric(self.metric)
                    found[some[:, None], torch.tensor(pair.rows)] = values.double().cpu()
            if not self.keeps:
                pair.forget()
        return found

    def mean(self, shares: Float[Tensor, "E S R"]) -> Float[Tensor, "E"]:
        """The same, averaged over the rows."""
        return self.run(shares).mean(1)


def _bytes(pair: Pair, shares: Float[Tensor, "E S R"], begin: int) -> int:
    """About what one set of edges takes in a batch: the writes that are followed, and one part's receivers."""
    rows, length = pair.size
    followed = shares.any(0).any(1) & torch.tensor([sender.state > begin for sender in pair.graph.senders])
    widest = max(Counter(receiver.part for receiver in pair.graph.receivers).values())
    state = pair.base.recording.states[0]
    return rows * length * state.shape[-1] * state.element_size() * (2 * int(followed.sum()) + 6 * widest + 8)


class _Batch:
    """Some sets of edges of some rows, from one state of the stream on."""

    def __init__(self, pair: Pair, shares: Float[Tensor, "E S R"], begin: int):
        self.pair, self.begin = pair, begin
        state = pair.base.recording.states[begin]
        self.shares = shares.to(state)
        used = shares.any(0).any(1)
        written = torch.tensor([sender.state for sender in pair.graph.senders])
        # What stands before the first patched receiver writes what it does in the base, in every run of the batch.
        self.before = (used & (written <= begin)).nonzero().flatten()
        self.followed = used & (written > begin)
        self.after: list[tuple[Tensor, Float[Tensor, "E M S T D"]]] = []
        self.x = state.repeat(len(shares), 1, 1)
        here = pair.base.here
        memory = None if here.memory is None else here.memory.pick(list(range(len(pair.rows))) * len(shares))
        self.here = replace(here, memory=memory)

    def metric(self, metric: Metric) -> Float[Tensor, "E M"]:
        """Run to the end, and read the metric there."""
        transformer = self.pair.base.recording.transformer
        for step in transformer.steps[self.begin :]:
            updates = [self._update(step, part) for part in step.parts]
            self.x = step.close(self.x, updates, self.here)
        last = self._streams(slice(len(self.pair.graph.receivers) - 1, None))
        end = self.x if last is None else last[:, 0]
        return read_metric(self.pair, metric, end, self.here).view(len(self.shares), -1)

    def _update(self, step: Step, part: Part) -> Float[Tensor, "N T D"]:
        """A part's update, each of its receivers reading what its edges bring."""
        senders, receivers = self.pair.graph.of_part(part.name)
        follow = self.followed[senders].nonzero().flatten() + senders.start
        kept: list[Tensor] = []
        here = _watched(self.here, part, kept) if len(follow) else self.here
        streams = self._streams(receivers)
        if streams is None:
            update = part(step.source(self.x, here), here)
        elif isinstance(part, Attention):
            update = attend(part, read(step, part, streams, here), here)
        else:
            update = part(step.source(streams[:, 0], here), here)
        if len(follow):
            now = kept[0] if isinstance(part, Attention) else kept[0][:, :, None]
            other = self.pair.written(part.name)
            change = (
                other[:, :, follow - senders.start] - now.unflatten(0, (-1, len(other)))[..., follow - senders.start, :]
            )
            self.after.append((follow, change.transpose(2, 3)))
        return update

    def _streams(self, receivers: slice) -> Float[Tensor, "N R T D"] | None:
        """What each of some receivers reads, before any norm; None where none of them has a patched edge."""
        shares = self.shares[:, :, receivers]
        if not bool(shares.any()):
            return None
        size = (len(shares), self.pair.size[0])
        found = self.x.unflatten(0, size)[:, :, None]
        if len(self.before):
            found = found + torch.einsum("esr,mstd->emrtd", shares[:, self.before], self.pair.change[:, self.before])
        for senders, change in self.after:
            found = found + torch.einsum("esr,emstd->emrtd", shares[:, senders], change)
        return found.expand(-1, -1, shares.shape[-1], -1, -1).flatten(0, 1)


def _watched(here: Pass, part: Part, kept: list[Tensor]) -> Pass:
    """A pass that keeps what a part's senders write."""

    def keep(value: Tensor, _place: Place, _keys: Place | None) -> Tensor:
        kept.append(value)
        return value

    looks: dict[str, Look] = {f"{part.name}.writes" if isinstance(part, Attention) else f"{part.name}.update": keep}
    return replace(here, looks=chain(here.looks or {}, looks))


def read_metric(pair: Pair, metric: Metric, x: Float[Tensor, "N T D"], here: Pass) -> Float[Tensor, "N"]:
    """A metric of final states, a row's own positions counted without padding."""
    length = pair.size[1]
    for row in pair.rows:
        metric.columns(pair.base.run, row)  # refuses a position that a row does not have
    at = [position % length for position in metric.positions]
    here = replace(here, place=columns(here.place, at), rotation=None)
    return metric.read(pair.base.run, pair.base.recording.transformer.logits(x[:, at], here))

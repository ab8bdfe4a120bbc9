"""A circuit: some edges of a model's graph, and how much of what the model does they do by themselves.

Over the edges of a circuit goes what the senders write; over all others what they write in the corrupted run.
"""

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..views.table import Table
from .edges import Wiring
from .errors import GraphError
from .graph import Edge, Graph
from .metrics import Metric
from .run import Run

SHOWN = 30  # edges that are printed
ROUNDING = 64  # machine epsilons, relative: what two ways to one value may differ by


@dataclass(frozen=True)
class Measure:
    """The metric, averaged over rows: of the whole model m(M), of no edge at all m(0), and of the circuit m(C)."""

    metric: str
    whole: float
    empty: float
    own: float


@dataclass(frozen=True, eq=False, repr=False)
class Circuit:
    """Edges with their scores, strongest first, and the metric that they reach by themselves.

    `feeds` names for each receiver the senders whose writes are made of it; `of` is how many edges the model has. A
    circuit that was read from a file knows its numbers but not its runs: `on` gives it runs.
    """

    edges: tuple[Edge, ...]
    scores: tuple[float, ...]
    method: str
    of: int
    feeds: Mapping[str, tuple[str, ...]]
    measure: Measure
    wiring: Wiring | None = None

    @property
    def faithfulness(self) -> float:
        """(m(C) - m(0)) / (m(M) - m(0)): 1 where the circuit does all that the model does (Marks et al. 2024)."""
        found = self.measure
        return (found.own - found.empty) / (found.whole - found.empty)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The senders that write over the circuit's edges, in the order of the data flow."""
        here = {edge.sender for edge in self.edges}
        if self.wiring is None:
            return tuple(dict.fromkeys(edge.sender for edge in self.edges))
        return tuple(sender.name for sender in self.wiring.graph.senders if sender.name in here)

    def on(self, clean: Run, corrupted: Run, metric: Metric) -> "Circuit":
        """The same edges, measured on other runs."""
        return measured(Wiring(clean, corrupted, metric), dict(zip(self.edges, self.scores, strict=True)), self.method)

    def completeness(self, subsets: int = 10, seed: int = 0) -> Table:
        """|m(C without K) - m(M without K)| for random sets K of the circuit's nodes (Wang et al. 2022), and each node.

        A complete circuit goes wrong as the model does: what makes up for a missing node in the model is in it too.
        First each node by itself is K, then what differs among `subsets` draws that hold each node by a chance of half.
        """
        wiring = self._runs()
        nodes = [node for node in self.nodes if node != wiring.graph.senders[0].name]
        draw = random.Random(seed)
        drawn = [tuple(node for node in nodes if draw.random() < 0.5) for _ in range(subsets)]
        sets = list(dict.fromkeys([*((node,) for node in nodes), *filter(None, drawn)]))
        if not sets:
            raise GraphError("a circuit without a head or a feed-forward layer has no nodes to leave out")
        own = wiring.graph.mask(self.edges)
        kept = [_without(wiring.graph, edges, some) for some in sets for edges in (own, wiring.graph.exists)]
        found = metric_of(wiring, torch.stack(kept)).view(-1, 2)
        far = (found[:, 0] - found[:, 1]).abs()
        rows = [
            (", ".join(some), circuit, model, gap)
            for some, (circuit, model), gap in zip(sets, found.tolist(), far.tolist(), strict=True)
        ]
        note = f"mean {float(far.mean()):.4f}, largest {float(far.max()):.4f}; seed {seed}"
        return Table(
            f"completeness, {self.measure.metric}", ("without", "circuit", "model", "apart"), tuple(rows), note
        )

    def minimality(self, by: str = "node") -> Table:
        """|m(C) - m(C without v)| for every node v of the circuit, largest first, or `by` "edge" for every edge.

        What has 0 is not needed beside the rest.
        """
        if by not in ("node", "edge"):
            raise GraphError(f"a circuit is taken apart by 'node' or 'edge', got {by!r}")
        wiring = self._runs()
        graph, own = wiring.graph, wiring.graph.mask(self.edges)
        names = self.nodes if by == "node" else tuple(map(str, self.edges))
        less = [_without(graph, own, [node]) for node in self.nodes] if by == "node" else []
        less += [own & ~graph.mask([edge]) for edge in self.edges] if by == "edge" else []
        found = metric_of(wiring, torch.stack(less)).tolist()
        rows = [(name, value, abs(value - self.measure.own)) for name, value in zip(names, found, strict=True)]
        rows.sort(key=_last, reverse=True)
        note = f"with all of them {self.measure.own:.4f}"
        return Table(f"minimality, {self.measure.metric}", ("without", "circuit", "change"), tuple(rows), note)

    def table(self) -> Table:
        """Every edge with its score, strongest first."""
        found = self.measure
        note = (
            f"{len(self.edges)} of {self.of} edges by {self.method}: {found.metric} {found.own:.4f}, whole model "
            f"{found.whole:.4f}, no edge {found.empty:.4f}, faithfulness {self.faithfulness:.4f}"
        )
        rows = tuple((*edge, score) for edge, score in zip(self.edges, self.scores, strict=True))
        return Table(f"circuit, {found.metric}", ("sender", "receiver", "score"), rows, note)

    def top(self, k: int = 10) -> Table:
        """The k strongest edges."""
        return self.table().top(k)

    def to_json(self) -> dict[str, Any]:
        """The circuit as plain data, a graph that can be kept in a file."""
        edges = [{"sender": edge.sender, "receiver": edge.receiver, "score": score,
                  "feeds": list(self.feeds[edge.receiver])}
                 for edge, score in zip(self.edges, self.scores, strict=True)]  # fmt: skip
        return {
            "method": self.method,
            "measure": vars(self.measure).copy(),
            "faithfulness": self.faithfulness,
            "edges of the model": self.of,
            "edges": edges,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Circuit":
        """The inverse of `to_json`, but for the runs. Raises GraphError for data that is no circuit."""
        try:
            edges = tuple(Edge(str(each["sender"]), str(each["receiver"])) for each in data["edges"])
            feeds = {str(each["receiver"]): tuple(map(str, each["feeds"])) for each in data["edges"]}
            scores = tuple(float(each["score"]) for each in data["edges"])
            measure = Measure(**data["measure"])
            return cls(edges, scores, str(data["method"]), int(data["edges of the model"]), feeds, measure)
        except (KeyError, TypeError, ValueError) as error:
            raise GraphError(f"a circuit is what Circuit.to_json() gives; this lacks or misspells {error}") from error

    def to_mermaid(self) -> str:
        """The circuit as a Mermaid flowchart, an edge into a head labelled by what the head makes of it."""
        names = dict.fromkeys(each for edge in self.edges for each in (edge.sender, *self._ends(edge.receiver)))
        numbers = {name: f"n{at}" for at, name in enumerate(names)}
        lines = ["flowchart BT", *(f'  {number}["{name}"]' for name, number in numbers.items())]
        for edge in self.edges:
            what = edge.receiver.rpartition(".")[2].split(" ")[0] if "head " in edge.receiver else ""
            arrow = f"-- {what} -->" if what else "-->"
            lines += [f"  {numbers[edge.sender]} {arrow} {numbers[end]}" for end in self._ends(edge.receiver)]
        return "\n".join(lines)

    def _ends(self, receiver: str) -> tuple[str, ...]:
        """The nodes that an edge leads to: of heads that share a key or a value, those that write in the circuit."""
        here = {edge.sender for edge in self.edges}
        return tuple(name for name in self.feeds[receiver] if name in here) or (receiver,)

    def _runs(self) -> Wiring:
        if self.wiring is None:
            raise GraphError("a circuit from a file has no runs: circuit.on(clean, corrupted, metric) gives it some")
        return self.wiring

    def __str__(self) -> str:
        left_out = len(self.edges) - SHOWN
        shown = self.top(SHOWN)
        return str(
            shown if left_out <= 0 else replace(shown, note=f"{left_out} weaker edges are not shown\n{shown.note}")
        )

    __repr__ = __str__


def metric_of(wiring: Wiring, kept: Bool[Tensor, "E S R"]) -> Float[Tensor, "E"]:
    """The metric where only some edges carry what the clean run makes of them; averaged over the rows."""
    return wiring.mean((wiring.graph.exists & ~kept).double())


def measured(wiring: Wiring, scores: Mapping[Edge, float], method: str) -> Circuit:
    """The circuit of some edges, run by itself, beside the whole model and none of it."""
    graph = wiring.graph
    own = graph.mask(scores)
    kept = torch.stack((graph.exists, torch.zeros_like(own), own))
    whole, empty, alone = metric_of(wiring, kept).tolist()
    name = wiring.metric.name
    # Each starts where its edges do, so that two values that should be one may differ by rounding.
    if math.isclose(whole, empty, rel_tol=ROUNDING * torch.finfo(wiring.base.states[0].dtype).eps):
        raise GraphError(f"{name} is {whole:g} in both runs: no part of a difference of 0 can be told")
    edges = tuple(sorted(scores, key=lambda edge: abs(scores[edge]), reverse=True))
    feeds = {edge.receiver: graph.receivers[graph.receiver[edge.receiver]].feeds for edge in edges}
    found = Measure(name, whole, empty, alone)
    return Circuit(edges, tuple(scores[edge] for edge in edges), method, int(graph.exists.sum()), feeds, found, wiring)


def _without(graph: Graph, edges: Bool[Tensor, "S R"], nodes: Iterable[str]) -> Bool[Tensor, "S R"]:
    """Edges without those out of some nodes."""
    kept = edges.clone()
    kept[[graph.sender[node] for node in nodes]] = False
    return kept


def _last(row: tuple[Any, ...]) -> Any:
    return row[-1]

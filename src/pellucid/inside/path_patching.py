"""Path patching: what reaches a receiver straight from a sender, every other reader of the sender left as it was."""

import torch
from jaxtyping import Float
from torch import Tensor

from .edges import Wiring
from .effects import Effects
from .errors import GraphError
from .graph import Graph, Names
from .metrics import Metric
from .run import Run

TOGETHER = "all of them"
_AT_ONCE = 2**24  # numbers that say which edges are patched


def path_patch(
    base: Run, source: Run, metric: Metric, senders: Names = "*", receivers: Names = "*", together: bool = False
) -> Effects:
    """The effect of each edge from a sender to a receiver (Wang et al. 2022; Goldowsky-Dill et al. 2023).

    Only the receiver's input changes, by what the sender writes in the source run less what it writes in the base; what
    follows the receiver runs on normally. Effect = (m_patched - m_base) / (m_source - m_base), each metric averaged
    over the traces' rows: denoising where the base is the corrupted run, noising where it is the clean one. An edge
    backwards in depth is 0. `together` patches a sender's edges to all the receivers at once; to every receiver ("*")
    that is the effect of patching its write itself. Senders and receivers are given by name ("3.ffn",
    "9.attention.query head 6", "final"), by pattern ("*.attention head *"), or as several of these. Raises GraphError
    for a post-norm model, for names that fit nothing, and where the metric is the same in both runs.
    """
    wiring = Wiring(base, source, metric)
    graph = wiring.graph
    s, r = graph.choose(senders, "sender"), graph.choose(receivers, "receiver")
    before, after = float(metric.of(base).double().mean()), float(metric.of(source).double().mean())
    if before == after:
        raise GraphError(f"{metric.name} is {before:g} in both runs: no part of a difference of 0 can be told")
    sets = [[(i, j) for j in r] for i in s] if together else [[(i, j)] for i in s for j in r]
    values = torch.full((len(sets),), before, dtype=torch.float64)
    differs = _differs(wiring)
    exist = [[(i, j) for i, j in pairs if graph.exists[i, j] and differs[i]] for pairs in sets]
    run = sorted((at for at, pairs in enumerate(exist) if pairs), key=lambda at: exist[at][0][1])
    size = max(1, _AT_ONCE // graph.exists.numel())
    for some in (run[first : first + size] for first in range(0, len(run), size)):
        values[some] = wiring.mean(_shares(graph, [exist[at] for at in some]))
    effects = ((values - before) / (after - before)).view(len(s), -1)
    columns = (TOGETHER,) if together else tuple(graph.receivers[at].name for at in r)
    return Effects(
        f"path patching, {metric.name}",
        tuple(graph.senders[at].name for at in s),
        columns,
        effects,
        f"(patched - base) / (source - base), base {before:.4f}, source {after:.4f}",
        before,
        after,
        ("sender", "receiver", "effect"),
    )


def _shares(graph: Graph, sets: list[list[tuple[int, int]]]) -> Float[Tensor, "E S R"]:
    """Sets of edges, given by number, as the engine takes them."""
    found = torch.zeros(len(sets), *graph.exists.shape)
    for at, edges in enumerate(sets):
        found[at, [s for s, _ in edges], [r for _, r in edges]] = 1.0
    return found


def _differs(wiring: Wiring) -> list[bool]:
    """Which senders write something else in the other run; patching the others changes nothing."""
    found = torch.zeros(len(wiring.graph.senders), dtype=torch.bool)
    for pair in wiring.pairs:
        found |= pair.change.ne(0).flatten(2).any(2).any(0).cpu()
    return found.tolist()

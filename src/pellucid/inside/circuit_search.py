"""Finding the few edges of a model that do what it does on some prompts.

Axes: S senders, R receivers.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .circuit import Circuit, measured, metric_of
from .eap import EdgeScores, edge_scores
from .edges import Wiring
from .errors import GraphError
from .graph import Edge, Graph
from .metrics import Metric
from .path_patching import path_patch
from .run import Run

METHODS = ("eap-ig", "eap", "patching", "acdc")
POINTS = 5  # between the two inputs, as Hanna et al. (2024) take


def find_circuit(
    clean: Run,
    corrupted: Run,
    metric: Metric,
    method: str | EdgeScores = "eap-ig",
    size: int | None = None,
    threshold: float | None = None,
) -> Circuit:
    """The circuit whose edges carry the clean run's values while all others carry the corrupted run's.

    Edges are scored by "eap-ig" or "eap" (`edge_scores`), by "patching" each of them alone (`path_patch`), or by scores
    of one's own. With a `size` n, n edges are taken one after another, each the one with the largest score by size that
    leads into what is there, beginning at the end (Hanna et al. 2024); with a `threshold`, all whose scores reach it.
    What then lies on no path from the embeddings to the end carries nothing, and is dropped.

    "acdc" takes a threshold t (Conmy et al. 2023): from the end backwards each edge is left out unless that moves the
    metric by t or more further from the whole model's. This and "patching" need about a run for each edge of the model;
    scores by gradients need a few in all, but are blind where a softmax is saturated.

    Raises GraphError for a method, a size or a threshold that makes no sense, and as `path_patch` does.
    """
    _check(method, size, threshold)
    wiring = Wiring(clean, corrupted, metric)
    graph, name = wiring.graph, method.effects.title if isinstance(method, EdgeScores) else method
    if method == "acdc":
        scores = _acdc(wiring, threshold or 0.0)
        chosen = ~scores.isnan()
    else:
        scores = _scores(wiring, method)
        chosen = _greedy(graph, scores.abs(), size) if size is not None else scores.abs() >= (threshold or 0.0)
    places = graph.connected(chosen).nonzero().tolist()
    edges = {Edge(graph.senders[s].name, graph.receivers[r].name): float(scores[s, r]) for s, r in places}
    return measured(wiring, edges, f"{name}, {f'size {size}' if threshold is None else f'threshold {threshold:g}'}")


def _check(method: str | EdgeScores, size: int | None, threshold: float | None) -> None:
    scored = isinstance(method, EdgeScores)
    if not scored and method not in METHODS:
        raise GraphError(f"a circuit is found by {', '.join(map(repr, METHODS))} or by edge scores, got {method!r}")
    if (size is None) == (threshold is None) or (method == "acdc" and threshold is None):
        need = "a threshold" if method == "acdc" else "a size or a threshold, one of the two"
        who = "edge scores need" if scored else f"{method!r} needs"
        raise GraphError(f"{who} {need}; got size={size}, threshold={threshold}")
    if (size is not None and size < 1) or (threshold is not None and not threshold > 0):
        raise GraphError(f"a size is at least 1 and a threshold above 0, got size={size}, threshold={threshold}")


def _scores(wiring: Wiring, method: str | EdgeScores) -> Float[Tensor, "S R"]:
    """How much the metric changes by corrupting each edge; 0 where there is none."""
    clean, corrupted, metric = wiring.base, wiring.other, wiring.metric
    if isinstance(method, EdgeScores):
        scores, graph = method.effects, wiring.graph
        if (scores.rows, scores.columns) != (tuple(graph.sender), tuple(graph.receiver)):
            raise GraphError("the scores are those of another model's edges")
        return scores.values.nan_to_num(0.0)
    if method == "patching":
        found = path_patch(clean, corrupted, metric)
        return found.values * ((found.source or 0.0) - (found.base or 0.0))
    return edge_scores(clean, corrupted, metric, POINTS if method == "eap-ig" else 0).values.nan_to_num(0.0)


def _greedy(graph: Graph, sizes: Float[Tensor, "S R"], n: int) -> Bool[Tensor, "S R"]:
    """The n edges that are taken one after another, each the largest that leads into what is there."""
    into: dict[int, list[int]] = {s: [] for s in range(len(graph.senders))}
    for r, receiver in enumerate(graph.receivers):
        for name in receiver.feeds:
            into[graph.sender[name]].append(r)
    open_ = torch.zeros(len(graph.receivers), dtype=torch.bool)
    open_[-1] = True
    chosen, left = torch.zeros_like(graph.exists), sizes.where(graph.exists, 0.0)
    for _ in range(n):
        candidates = left * open_
        s, r = divmod(int(candidates.argmax()), candidates.shape[1])
        if candidates[s, r] == 0:
            break
        chosen[s, r], left[s, r] = True, 0.0
        open_[into[s]] = True
    return chosen


def _acdc(wiring: Wiring, threshold: float) -> Float[Tensor, "S R"]:
    """How much further from the whole model's the metric was without each edge that stays; NaN for all others.

    Edges are tried one after another. Since most can be left out, a run is made for each of several to come as if all
    before it had been; those after the first that cannot are tried again.
    """
    graph = wiring.graph
    kept, scores = graph.exists.clone(), torch.full(graph.exists.shape, torch.nan, dtype=torch.float64)
    whole = float(metric_of(wiring, kept[None])[0])
    far, many = 0.0, 4
    for receiver in reversed(range(len(graph.receivers))):
        if not bool(graph.connected(kept)[:, receiver].any()):
            kept[:, receiver] = False  # nothing that it feeds is left
            continue
        left = kept[:, receiver].nonzero().flatten().flip(0).tolist()
        while left:
            some = left[:many]
            tried = kept.repeat(len(some), 1, 1)
            for at, sender in enumerate(some):
                tried[at:, sender, receiver] = False
            apart = (metric_of(wiring, tried) - whole).abs().tolist()
            for at, sender in enumerate(some):
                if apart[at] - far >= threshold:
                    scores[sender, receiver] = apart[at] - far
                    left, many = left[at + 1 :], max(1, many // 2)
                    break
                kept[sender, receiver], far = False, apart[at]
            else:
                left, many = left[len(some) :], 2 * many
    return scores

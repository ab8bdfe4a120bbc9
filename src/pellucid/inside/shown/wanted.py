"""What each view of the page asks for: what it must have to show anything, and what it has use for beside that.

Addresses are compared letter by letter, so the parameters here are those that the view's component gives, no more and
no fewer. A browser test opens every view of a saved file and looks for what was not saved in it.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from ...views.packed import Packed
from ..run import Run
from .norm import norm_sites
from .patterns import pattern_plan


@dataclass(frozen=True)
class Chosen:
    """What is looked at in all views; `token` is an id that is followed, None the most probable one."""

    layer: int = 0
    head: int = 0
    part: str = "attention"
    position: int = 0
    key: int = 0
    neuron: int = 0
    token: int | None = None
    state: int = 0


@dataclass(frozen=True)
class Asked:
    """A question: a resource of the run, or of the model's weights, and its parameters."""

    resource: str
    parameters: dict[str, int | str] = field(default_factory=dict)
    of: str = "traces"


# Each question is answered before the next is asked. What stands after a None is added as far as there is room.
Wanted = Generator[Asked | None, Any, None]
View = Callable[[Run, Chosen], Wanted]


def glance(run: Run, chosen: Chosen) -> Wanted:
    """The next tokens, of every position in turn."""
    yield from _next(run, chosen.position)
    yield None
    yield from _everywhere(run, chosen)


def stream(run: Run, chosen: Chosen) -> Wanted:
    """The map of the stream."""
    yield from _next(run, chosen.position)
    yield Asked("stream")
    yield None
    yield from _everywhere(run, chosen)


def attention(run: Run, chosen: Chosen) -> Wanted:
    """The chosen head at the chosen token; then at the others, then the layer's other heads."""
    yield from _next(run, chosen.position)
    yield _head_at(chosen, chosen.head, chosen.position)
    for position in {chosen.position, len(run.columns()) - 1}:
        yield from _next(run, position, k=40)
    yield None
    yield from _everywhere(run, chosen)
    for head in range(run.transformer.config.n_heads):
        yield _head_at(chosen, head, chosen.position)
    for position in _outward(run, chosen):
        yield _head_at(chosen, chosen.head, position)


def heads(run: Run, chosen: Chosen) -> Wanted:
    """All heads' patterns, and what the chosen head does at the chosen token; then at the others."""
    yield from _next(run, chosen.position)
    yield Asked("plan", {"part": chosen.part})
    plan = pattern_plan(run, chosen.part)
    for first, last in plan["requests"]:
        yield Asked("patterns", {"layer": first, "last": last, "part": chosen.part, "size": plan["size"]})
    yield None
    yield from _everywhere(run, chosen)


def ffn(run: Run, chosen: Chosen) -> Wanted:
    """The norms and the neurons of the chosen layer at the chosen token; then of the other layers."""
    yield from _next(run, chosen.position)
    yield Asked("norms")
    for norm in norm_sites(run.transformer):
        if norm.layer in (chosen.layer, None):
            yield Asked("norm", {"position": chosen.position, "site": norm.site})
    yield from _neurons(chosen, chosen.layer, chosen.neuron)
    yield None
    yield from _everywhere(run, chosen)
    for layer in range(run.transformer.config.n_layers):
        yield from _neurons(chosen, layer, 0)


def whole_pass(run: Run, chosen: Chosen) -> Wanted:
    """All stages of the chosen layer at the chosen token, with all their numbers; then of the other layers."""
    yield from _next(run, chosen.position)
    first = chosen.layer or -1  # where the page begins
    yield from _stages(first, chosen.position)
    yield None
    for layer in range(-1, run.transformer.config.n_layers + 1):
        yield from _stages(layer, chosen.position)


WANTED: dict[str, View] = {
    "glance": glance,
    "stream": stream,
    "attention": attention,
    "heads": heads,
    "ffn": ffn,
    "pass": whole_pass,
}


def _next(run: Run, position: int, k: int = 10) -> Wanted:
    """The next tokens, which stand beside every view; a model without a head has none."""
    if run.transformer.unembed is not None:
        yield Asked("next", {"k": k, "position": position})


def _everywhere(run: Run, chosen: Chosen) -> Wanted:
    """The next tokens at every position, the nearest to the chosen one first."""
    for position in _outward(run, chosen):
        yield from _next(run, position)


def _outward(run: Run, chosen: Chosen) -> list[int]:
    """All positions, the nearest to the chosen one first."""
    return sorted(range(len(run.columns())), key=lambda position: abs(position - chosen.position))


def _head_at(chosen: Chosen, head: int, query: int) -> Asked:
    return Asked("attention", {"head": head, "layer": chosen.layer, "part": chosen.part, "query": query})


def _neurons(chosen: Chosen, layer: int, neuron: int) -> Wanted:
    """A layer's neurons, and one of them: where none is chosen the strongest."""
    shown = yield Asked("ffn", {"k": 8, "layer": layer, "position": chosen.position})
    assert isinstance(shown, Packed), "neurons are sent packed"
    neuron = neuron or shown.meta["strongest"][0]["neuron"]
    yield Asked("neuron", {"k": 8, "layer": layer, "neuron": neuron}, of="models")


def _stages(layer: int, position: int) -> Wanted:
    shown = yield Asked("stages", {"layer": layer, "position": position})
    for stage in shown["stages"]:
        if stage["of"] > len(stage["values"]) and "ids" not in stage:
            yield Asked("values", {"position": position, "site": stage["site"]})

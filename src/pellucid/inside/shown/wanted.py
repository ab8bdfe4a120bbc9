"""What each view of the page asks for: what it must have to show anything, and what it has use for beside that.

Addresses are compared letter by letter, so the parameters here are those that the view's component gives, no more and
no fewer. A browser test opens every view of a saved file and looks for what was not saved in it.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from ...views.packed import Packed
from ..reading import state_sites
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


_WIDE, _HIGH = 64, 8  # tokens and states of a tile of the stream's map

# Each question is answered before the next is asked. What stands after a None is added as far as there is room.
Wanted = Generator[Asked | None, Any, None]
View = Callable[[Run, Chosen], Wanted]


def glance(run: Run, chosen: Chosen) -> Wanted:
    """The next tokens, of every position in turn."""
    yield from _next(run, chosen.position)
    yield None
    yield from _everywhere(run, chosen)


def stream(run: Run, chosen: Chosen) -> Wanted:
    """The map of the stream around the chosen token, its state and its path; then other states and other tokens."""
    has_head = run.transformer.unembed is not None
    yield from _next(run, chosen.position)
    yield Asked("stream")
    if has_head:
        yield from _tiles(run, chosen.position)
    yield from _cell(chosen.position, chosen.state)
    yield Asked("path", {"position": chosen.position})
    yield None
    if has_head:
        followed = {} if chosen.token is None else {"token": chosen.token}
        yield Asked("lens", {"position": chosen.position, **followed})
        yield Asked("ledger", {"by": "sublayer", "k": 12, "position": chosen.position, **followed})
    yield from _everywhere(run, chosen)
    if len(run.columns()) > 1:
        yield Asked("path", {"every": True, "first": 1})
    for state in reversed(_rows(run)):
        yield from _cell(chosen.position, state)
    for position in _outward(run, chosen):
        yield from _cell(position, chosen.state)
        yield Asked("path", {"position": position})


def attention(run: Run, chosen: Chosen) -> Wanted:
    """The chosen head at the chosen token; then at the others, then the layer's other heads."""
    yield from _next(run, chosen.position)
    yield _head_at(chosen, chosen.head, chosen.position)
    for position in (chosen.position, len(run.columns()) - 1):
        yield from _next(run, position, k=40)
    yield None
    yield from _everywhere(run, chosen)
    for head in range(run.transformer.config.n_heads):
        yield _head_at(chosen, head, chosen.position)
    for position in _outward(run, chosen):
        yield _head_at(chosen, chosen.head, position)


def heads(run: Run, chosen: Chosen) -> Wanted:
    """All heads' patterns, and what the chosen head does at the chosen token; then the layer's other heads."""
    yield from _next(run, chosen.position)
    yield Asked("plan", {"part": chosen.part})
    plan = pattern_plan(run, chosen.part)
    for first, last in plan["requests"]:
        yield Asked("patterns", {"layer": first, "last": last, "part": chosen.part, "size": plan["size"]})
    yield from _told(run, chosen, chosen.layer, chosen.head, plan)
    yield None
    yield from _everywhere(run, chosen)
    for head in range(run.transformer.config.n_heads):
        yield from _told(run, chosen, chosen.layer, head, plan)


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
    """All stages of the chosen layer at the chosen token, with all their numbers; then of the other layers.

    Where no layer is chosen the page begins with what comes first, of an encoder at its first token.
    """
    yield from _next(run, chosen.position)
    if run.source is not None and chosen.layer == 0:
        yield from _stages(-1, 0, "encoder")
    yield from _stages(chosen.layer or -1, chosen.position)
    yield None
    for layer in range(-1, run.source.transformer.config.n_layers + 1 if run.source is not None else -1):
        yield from _stages(layer, 0, "encoder")
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


def _cell(position: int, state: int) -> Wanted:
    for along in ("nothing", "top token"):
        yield Asked("cell", {"along": along, "k": 8, "position": position, "state": state})


def _rows(run: Run) -> range:
    """The states before each block, and the last."""
    names = state_sites(run.transformer)
    step = next(index for index, name in enumerate(names) if index and name.endswith(".stream"))
    return range(0, len(names), step)


def _tiles(run: Run, position: int) -> Wanted:
    """What the lens says at the tokens around one, as tiles of the page's size, the last states first."""
    rows, first = _rows(run), position - position % _WIDE
    last = min(first + _WIDE, len(run.columns())) - 1
    for end in range(len(rows), 0, -_HIGH):
        some = rows[max(0, end - _HIGH) : end]
        ends = {"first_state": some[0], "last_state": some[-1], "step": rows.step}
        yield Asked("depths", {**ends, "first": first, "last": last})


def _everywhere(run: Run, chosen: Chosen) -> Wanted:
    """The next tokens at every position, the nearest to the chosen one first."""
    for position in _outward(run, chosen):
        yield from _next(run, position)


def _outward(run: Run, chosen: Chosen) -> list[int]:
    """All positions, the nearest to the chosen one first."""
    return sorted(range(len(run.columns())), key=lambda position: abs(position - chosen.position))


def _head_at(chosen: Chosen, head: int, query: int) -> Asked:
    return Asked("attention", {"head": head, "layer": chosen.layer, "part": chosen.part, "query": query})


def _told(run: Run, chosen: Chosen, layer: int, head: int, plan: dict[str, Any]) -> Wanted:
    """What a head does at the chosen token, and its own pattern where that of all heads is no exact one."""
    at = {"head": head, "layer": layer, "part": chosen.part}
    yield Asked("head", {**at, "position": chosen.position} | ({} if chosen.token is None else {"token": chosen.token}))
    if plan["size"]:
        yield Asked("patterns", {**at, "size": plan["large"]})


def _neurons(chosen: Chosen, layer: int, neuron: int) -> Wanted:
    """A layer's neurons, and one of them: where none is chosen the strongest."""
    shown = yield Asked("ffn", {"k": 8, "layer": layer, "position": chosen.position})
    assert isinstance(shown, Packed), "neurons are sent packed"
    neuron = neuron or shown.meta["strongest"][0]["neuron"]
    yield Asked("neuron", {"k": 8, "layer": layer, "neuron": neuron}, of="models")


def _stages(layer: int, position: int, side: str = "") -> Wanted:
    shown = yield Asked("stages", {"layer": layer, "position": position, **({"side": side} if side else {})})
    for stage in shown["stages"]:
        if stage["of"] > len(stage["values"]) and "ids" not in stage:
            yield Asked("values", {"position": position, "site": stage["site"]})

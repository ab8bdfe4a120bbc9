"""Gradients of a metric at every site, by a vector-Jacobian product of one step at a time.

Nothing of the forward pass is kept for them but the states that the trace holds: from the last state backwards, each
step is run once more from the state before it and differentiated alone. A value inside a step is differentiated when it
is asked for, from there to the next state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.flow import Look, Memory, Pass
from ..model.place import Place, columns
from ..model.transformer import Step
from ..views.table import Table
from .metrics import Metric, check_metric
from .names import check_name, select
from .reading import all_sites, chain, group_of, state_sites
from .run import Run


@runtime_checkable
class End(Protocol):
    """What ends a pass: one number, made of the last state; a nudge is added on the way if there is one."""

    def __call__(self, run: Run, state: Float[Tensor, "B T D"], nudge: "Nudge | None" = None) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Measured:
    """What ends a pass: a metric, added over some rows."""

    metric: Metric
    rows: tuple[int, ...]

    def __call__(self, run: Run, state: Float[Tensor, "B T D"], nudge: "Nudge | None" = None) -> Tensor:
        """The metric's sum, from the last state; only the logits that it reads are made."""
        found = [self._logits(run, state, row, nudge) for row in self.rows]
        return self.metric.read(run, torch.stack(found)).sum()

    def _logits(self, run: Run, state: Tensor, row: int, nudge: "Nudge | None") -> Tensor:
        at = self.metric.columns(run, row)
        here = run.present(row)
        here = replace(here, place=columns(here.place, at), rotation=None)
        rows = slice(row, row + 1)
        return run.transformer.logits(state[rows, at], _nudged(here, nudge, rows, at))[0]


@dataclass(frozen=True, eq=False)
class Attended:
    """What ends an encoder's pass: its decoder, which has the `gradient` with respect to what it attends to."""

    gradient: Float[Tensor, "B S E"]

    def __call__(self, run: Run, state: Float[Tensor, "B S E"], nudge: "Nudge | None" = None) -> Tensor:
        """A number whose gradient at the encoder's last state is the metric's."""
        here = _nudged(run.present(), nudge, slice(None), range(state.shape[1]))
        return (run.transformer.normed(state, here) * self.gradient).sum()


@dataclass(frozen=True, eq=False)
class Nudge:
    """Zeros that are added to a site behind the last state, to differentiate by; of all rows and columns."""

    site: str
    zeros: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Gradients:
    """d metric / d value at every site of a trace, the metric added over its rows.

    `gradients["5.attention.pattern"]` has the shape of `trace["5.attention.pattern"]`: how the metric answers to that
    value with everything before it held, edits of the trace in force. `states` are those of the stream, kept; all
    others are computed when they are asked for. An encoder-decoder's gradients at its encoder's sites are among them.
    With a `dropped` layer ("3", "encoder.3") nothing is carried through what that layer writes.
    """

    run: Run
    end: End
    states: tuple[Float[Tensor, "B T D"], ...]
    source: "Gradients | None" = None
    dropped: str = ""

    def __getitem__(self, site: str) -> Tensor:
        """The gradient at one site. Raises SiteError, and WeightsChangedError if the weights are others now."""
        name = check_name(site, self.run.names)
        if self.source is not None and name.startswith(self.source.run.transformer.prefix):
            return self.source[name]
        names = state_sites(self.run.transformer)
        if name in names:
            return self.states[names.index(name)]
        group = group_of(self.run.transformer, name)
        self.run.check([group])
        with torch.enable_grad(), self.run.precision.restored():
            return self._behind(name) if group == "final" else self._within(name, group)

    def read(self, pattern: str) -> dict[str, Tensor]:
        """The gradient at every site that a pattern names, as `trace.read` has it."""
        return {name: self[name] for name in select(pattern, self.run.names)}

    def table(self) -> Table:
        """Each state of the stream: the gradient's size, and its product with the state."""
        states, sites = self.run.states, state_sites(self.run.transformer)
        pairs = [(gradient.double(), state.double()) for gradient, state in zip(self.states, states, strict=True)]
        rows = tuple(
            (site, float(gradient.norm()), float((gradient * state).sum()))
            for site, (gradient, state) in zip(sites, pairs, strict=True)
        )
        name = self.end.metric.name if isinstance(self.end, Measured) else "what the decoder makes of it"
        return Table(f"gradient of {name}", ("site", "norm", "gradient . state"), rows)

    def top(self, k: int = 10) -> Table:
        """The k states with the largest gradients."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        table = self.table()
        return replace(table, rows=tuple(sorted(table, key=_size, reverse=True)[:k]))

    def to_json(self) -> dict[str, object]:
        """The table as plain data."""
        return self.table().to_json()

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__

    def _behind(self, name: str) -> Tensor:
        """Of a site behind the last state: the metric's own reading of it."""
        run = self.run
        site = next(each for each in all_sites(run.transformer) if each.name == name)
        rows, length = run.ids.shape
        exact = torch.promote_types(run.states[-1].dtype, torch.float32)
        zeros = run.states[-1].new_zeros(site.shape(run.transformer.config, length, rows), dtype=exact)
        if name.endswith(("pooled", "next_sentence")):  # no logit is made of these
            return zeros
        zeros.requires_grad_()
        return pulled(self.end(run, run.states[-1].detach(), Nudge(name, zeros)), [zeros])[0]

    def _within(self, name: str, group: str) -> Tensor:
        """Of a site on the way from one state to the next."""
        leaf = _Leaf()
        here = whole_pass(self.run)
        here = replace(here, looks=chain(here.looks or {}, {name: leaf}))
        transformer = self.run.transformer
        if group == "embed":
            index, after = 0, transformer.embed(self.run.ids, here, self.run.recording.types)
        else:
            steps = transformer.steps
            index = 1 + next(i for i, step in enumerate(steps) if group in _groups(step))
            after = advance(steps[index - 1], self.run.states[index - 1].detach(), here, self.dropped)
        after = here.look(state_sites(transformer)[index], after)
        assert leaf.value is not None, f"the pass never reached {name}"
        found = pulled(after, [leaf.value], self.states[index])[0]
        # a hidden score moves nothing; where all of a query's are hidden, autograd would give 0/0
        return found.masked_fill(leaf.value == -torch.inf, 0.0) if name.endswith(".scores") else found


class _Leaf:
    """A look that puts a leaf in a value's place."""

    def __init__(self) -> None:
        self.value: Tensor | None = None

    def __call__(self, value: Tensor, _place: Place, _keys: Place | None) -> Tensor:
        self.value = value.detach().requires_grad_()
        return self.value


def gradients(run: Run, metric: Metric, row: int | None = None, dropped: str = "") -> Gradients:
    """The gradients of a metric of one row, or of its sum over all rows.

    Takes the time of one more pass and of its backward pass without any for the weights, and the memory of the states.
    With a `dropped` layer, by its number with an encoder-decoder's side before it, what it writes is held as it is:
    effects that go through it are left out (AtP*'s dropout, Kramár et al. 2024).
    """
    check_metric(metric, run)
    rows = range(run.ids.shape[0])
    if row is not None:
        run.columns(row)  # refuses a row that there is not
        rows = rows[row:][:1]
    end = Measured(metric, tuple(rows))
    with torch.enable_grad(), run.precision.restored():
        return backwards(run, end, dropped)


def layers_of(run: Run) -> list[str]:
    """The layers that can be dropped, the encoder's among them."""
    names = [name.removesuffix(".stream") for name in state_sites(run.transformer) if name.endswith(".stream")][:-1]
    return names if run.source is None else [*layers_of(run.source), *names]


def backwards(run: Run, end: End, dropped: str = "") -> Gradients:
    """The gradients at all states, from the last to the first, and at those of the encoder that is attended to."""
    last = leaf(run.states[-1])
    (gradient,) = pulled(end(run, last), [last])
    here, found, attended = whole_pass(run), [gradient], None
    steps = zip(run.transformer.steps, run.states[:-1], state_sites(run.transformer)[1:], strict=True)
    for step, state, after_site in reversed(list(steps)):
        inputs, now = [leaf(state)], here
        if here.memory is not None and step.parts[0].name.endswith(".cross"):
            inputs.append(leaf(here.memory.stream))
            now = replace(here, memory=Memory(inputs[1], here.memory.place))
        after = now.look(after_site, advance(step, inputs[0], now, dropped))
        gradient, *others = pulled(after, inputs, gradient)
        found.append(gradient)
        for other in others:
            attended = other if attended is None else attended + other
    source = None
    if run.source is not None and attended is not None:
        with run.source.precision.restored():
            source = backwards(run.source, Attended(attended), dropped)
    return Gradients(run, end, tuple(reversed(found)), source, dropped)


def whole_pass(run: Run) -> Pass:
    """The pass as it was, with the looks of edits of states too."""
    return replace(run.present(), looks=dict(run.plan.looks()) or None)


def advance(step: Step, x: Float[Tensor, "B T D"], here: Pass, dropped: str = "") -> Float[Tensor, "B T D"]:
    """From one state to the next, by one step; what a dropped layer writes is not differentiated."""
    source = step.source(x, here)
    updates = [part(source, here) for part in step.parts]
    if dropped and step.state.startswith(f"{dropped}."):
        updates = [update.detach() for update in updates]
    return step.close(x, updates, here)


def leaf(value: Tensor) -> Tensor:
    """The same numbers, to differentiate by."""
    return value.detach().requires_grad_()


def pulled(after: Tensor, inputs: Sequence[Tensor], gradient: Tensor | None = None) -> list[Tensor]:
    """The gradients at inputs of what was made of them; zeros where an edit put something else in its place."""
    if not after.requires_grad:
        return [torch.zeros_like(each) for each in inputs]
    found = torch.autograd.grad(after, list(inputs), gradient, allow_unused=True, materialize_grads=True)
    return [each.detach() for each in found]


def _groups(step: Step) -> list[str]:
    """The groups of sites that one step computes."""
    shared = [] if step.shared is None else [f"{step.state.removesuffix('stream')}norm"]
    return [*(part.name for part in step.parts), *shared]


def _nudged(here: Pass, nudge: Nudge | None, rows: slice, at: Sequence[int]) -> Pass:
    """The pass with the zeros of its own rows and columns added at the nudged site."""
    if nudge is None:
        return here

    def add(value: Tensor, _place: Place, _keys: Place | None) -> Tensor:
        return value + nudge.zeros[rows, list(at)].to(value.dtype)

    look: Look = add
    return replace(here, looks=chain(here.looks or {}, {nudge.site: look}))


def _size(row: tuple[object, ...]) -> float:
    size = row[1]
    assert isinstance(size, float)
    return size

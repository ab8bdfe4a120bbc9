"""Running again only what an edit can change: from the first state it reaches, and from the first position."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from ..model.flow import Look, Looks
from ..model.place import Place, tail
from .edits import Edit
from .errors import EditError
from .plan import Change, Plan, plan
from .reading import chain, state_sites
from .recorder import Recorder
from .run import Run

AnyRun = TypeVar("AnyRun", bound=Run)


def edited(trace: AnyRun, edits: Sequence[Edit], watch: Looks | None = None) -> AnyRun:
    """The trace of the same input with some edits more. Nothing is run for edits that change no number.

    `watch` sees what is run again, edits made, and changes nothing.
    Raises SiteError or EditError for edits that make no sense, or that collide with each other or those already made.
    """
    every = plan(trace.transformer, (*trace.edits, *edits))
    new = Plan(every.changes[len(trace.edits) :])
    source = trace.source
    if source is not None:
        inner = [change.edit for change in new.changes if _is_encoders(trace, change)]
        source = edited(source, inner, watch) if inner else source
        new = Plan(tuple(change for change in new.changes if not _is_encoders(trace, change)))
    whole = Plan((*trace.plan.changes, *new.changes))
    active = [change for change in new.changes if not _changes_nothing(trace, change)]
    begin = _Start.of(trace, active, memory_changed=_memory_changed(trace.source, source))
    after = replace(trace, plan=whole, source=source)
    if begin.state >= len(trace.states) - 1:
        new_last = {site: look for site, look in Plan(tuple(active)).looks().items() if site == begin.name(trace)}
        return after if not new_last else after.with_states(_last(after, new_last))
    return after.with_states(_run(after, trace, new, begin, watch or {}))


def check_reached(trace: Run, edits: Sequence[Edit]) -> None:
    """Raise EditError for an edit of positions or keys that this text does not have."""
    for change in plan(trace.transformer, edits).changes:
        inner = trace.source if _is_encoders(trace, change) else None
        place = trace.place if inner is None else inner.place
        keys = place if trace.source is None or ".cross." not in change.site.name else trace.source.place
        wanted = {"position": change.edit.positions or change.edit.at, "key": change.edit.keys}
        for what, at in (("position", place), ("key", keys)):
            asked, there = wanted[what], int(at.positions.max()) + 1
            if asked is not None and min(asked) >= there:
                named = f"an edit of {change.site.name} at {what} {', '.join(map(str, asked))}"
                raise EditError(
                    f"{named} reaches nothing: this text has {what}s 0..{there - 1}. To edit what is yet to be "
                    "generated, use model.edited(...)"
                )


def made_with(trace: AnyRun, edits: Sequence[Edit]) -> AnyRun:
    """A trace whose states were recorded with these edits in force, saying so; an encoder's are made in its own."""
    changes = plan(trace.transformer, edits).changes
    inner = [change for change in changes if _is_encoders(trace, change)]
    source = None if trace.source is None else edited(trace.source, [change.edit for change in inner])
    return replace(trace, plan=Plan(tuple(change for change in changes if change not in inner)), source=source)


@dataclass(frozen=True)
class _Start:
    """Where a rerun begins: the state (-1: the embeddings) and the column."""

    state: int
    column: int

    @classmethod
    def of(cls, trace: Run, changes: Sequence[Change], memory_changed: bool) -> "_Start":
        states = [state_of(trace, change) for change in changes]
        columns = [_first_column(trace, change) for change in changes]
        if memory_changed:
            crossing = (i for i, step in enumerate(trace.transformer.steps) if step.parts[0].name.endswith(".cross"))
            states, columns = [*states, next(crossing)], [0]
        last = len(trace.states) - 1
        if not trace.transformer.config.causal:
            columns = [0]
        return cls(min(states, default=last), min(columns, default=0))

    def name(self, trace: Run) -> str:
        return state_sites(trace.transformer)[self.state] if self.state >= 0 else ""


def _run(after: Run, before: Run, new: Plan, begin: _Start, watch: Looks) -> tuple[Tensor, ...]:
    """The states from the start on, and from the column on, with every edit in force; what comes before is kept."""
    transformer, column = after.transformer, begin.column
    recorder, place = Recorder(transformer), tail(after.place, column)
    looks: dict[str, Look] = after.plan.looks()
    if begin.state >= 0:  # the state that is started from holds its earlier edits already
        looks.pop(begin.name(before), None)
        looks |= {site: look for site, look in new.looks().items() if site == begin.name(before)}
    here = replace(after.present(), place=place, rotation=transformer.rotation(place))
    here = replace(
        here, looks=chain(chain(looks, recorder.looks), watch), past=_Earlier(before, column) if column else None
    )
    with torch.set_grad_enabled(before.attached), after.precision.restored():
        if begin.state < 0:
            types = after.recording.types
            x = transformer.embed(after.ids[:, column:], here, None if types is None else types[:, column:])
        else:
            x = before.states[begin.state][:, column:]
        transformer.run(x, here, first=max(begin.state, 0))
    found = recorder.states(first=max(begin.state, 0))
    kept, replaced = before.states[: -len(found)], before.states[-len(found) :]
    return (*kept, *(torch.cat((old[:, :column], now), 1) for old, now in zip(replaced, found, strict=True)))


def _last(after: Run, looks: dict[str, Look]) -> tuple[Tensor, ...]:
    """All states, the last one with its own edits made."""
    (look,) = looks.values()
    return (*after.states[:-1], look(after.states[-1], after.place, None))


@dataclass(frozen=True)
class _Earlier:
    """Keys and values of the columns before a restart, rebuilt from the stream as it was."""

    trace: Run
    column: int

    def __call__(self, layer: int, key: Tensor, value: Tensor, place: Place) -> tuple[Tensor, Tensor, Place]:
        name = f"{self.trace.transformer.prefix}{layer}.attention"
        here = self.trace.present()
        held = [self.trace.recording.read(f"{name}.{what}", here)[:, : self.column] for what in ("key", "value")]
        return torch.cat((held[0], key), 1), torch.cat((held[1], value), 1), self.trace.place


def _is_encoders(trace: Run, change: Change) -> bool:
    return trace.source is not None and change.site.name.startswith(trace.source.transformer.prefix)


def _memory_changed(before: Run | None, after: Run | None) -> bool:
    """Whether the decoder attends to something else: another stream, or the same through an edited final norm."""
    if before is None or after is None or after is before:
        return False
    ends = f"{after.transformer.prefix}final."
    through = [change for change in after.plan.changes if change.site.name.startswith(ends)]
    return after.states is not before.states or bool(through)


def state_of(trace: Run, change: Change) -> int:
    """The index of the state that a change's site is computed from; -1 for the embeddings."""
    name, names = change.site.name, state_sites(trace.transformer)
    if name in names:
        return names.index(name)
    if name.startswith(f"{trace.transformer.prefix}embed."):
        return -1
    for index, step in enumerate(trace.transformer.steps):
        own = [f"{part.name}." for part in step.parts] + [step.state.removesuffix("stream") + "norm."]
        if name.startswith(tuple(own)):
            return index
    return len(names) - 1  # of the final norm, a head or the logits: nothing of the stream changes


def _first_column(trace: Run, change: Change) -> int:
    """The first column that a change reaches; all of them for a function of the whole site."""
    if change.edit.whole:
        return 0
    at = change.columns(trace.place).any(0)
    return int(at.int().argmax())


def _changes_nothing(trace: Run, change: Change) -> bool:
    """Whether the edit sets what is there already; one that is differentiated by is never nothing."""
    if trace.attached:
        return False
    keys = None
    if change.site.axes[-1] == "S":
        keys = trace.place if trace.source is None or ".cross." not in change.site.name else trace.source.place
    with torch.no_grad():
        value = trace[change.site.name]
        return torch.equal(change(value, trace.place, keys), value)

"""Edited runs of one text as jobs: where each of them starts, what it can reach, and what all of them share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.attention import Attention, CrossAttention
from ..model.config import Window
from ..model.flow import Look, Pass
from ..model.place import Place
from .edits import Edit
from .metrics import Metric
from .plan import Change, plan
from .reading import Recording, state_sites
from .rerun import edited, state_of
from .run import Run

# Sites of an attention layer that act on later layers from their own position alone: the mixing lies behind them.
_MIXED = ("query", "scores", "pattern", "heads", "writes", "update", "sum", "scale")


@dataclass(frozen=True, eq=False)
class Job:
    """One edited run: it leaves the base run at a state (-1: the embeddings) and a column, and needs nothing before."""

    changes: tuple[Change, ...]
    state: int
    column: int


@dataclass(frozen=True, eq=False)
class Base:
    """The run that is edited: one row, without padding, read by a metric at some columns.

    `states` are its own. What depends on it alone (keys, values, the encoder's memory) is made once for all jobs.
    """

    run: Run
    metric: Metric

    @classmethod
    def of(cls, run: Run, row: int, metric: Metric) -> "Base":
        """One row of a run. Raises ValueError for a row or a position that there is not."""
        return cls(unpadded(run, row), metric)

    @cached_property
    def at(self) -> list[int]:
        """The columns that the metric reads, in its own order."""
        return self.metric.columns(self.run)

    @cached_property
    def here(self) -> Pass:
        """The pass as it was; an encoder's keys and values are kept from their first use on."""
        here = self.run.present()
        return here if here.memory is None else replace(here, memory=replace(here.memory, kept={}))

    @cached_property
    def looks(self) -> dict[str, Look]:
        """The edits that the run was made with, those of states too."""
        return self.run.plan.looks()

    @cached_property
    def names(self) -> list[str]:
        """The names of the states."""
        return state_sites(self.run.transformer)

    @cached_property
    def mixing(self) -> list[int]:
        """The steps in which positions meet."""
        steps = enumerate(self.run.transformer.steps)
        return [index for index, step in steps if attention_in(step.parts) is not None]

    @cached_property
    def _kept(self) -> dict[int, tuple[Tensor, Tensor]]:
        return {}

    def keys_values(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values [1 T G K] of one step's attention in this run."""
        if index not in self._kept:
            step = self.run.transformer.steps[index]
            attention = attention_in(step.parts)
            assert attention is not None
            source = step.source(self.run.states[index], self.here)
            self._kept[index] = attention.project(attention.read(source, self.here), self.here)[1:]
        return self._kept[index]

    def value(self) -> float:
        """The metric of the run as it is."""
        return float(self.metric.of(self.run)[0])

    def plainly(self, changes: Sequence[Change]) -> float:
        """The metric with some edits, by the edited trace itself."""
        return float(self.metric.of(edited(self.run, [change.edit for change in changes]))[0])

    def changes(self, edits: Sequence[Edit]) -> tuple[Change, ...]:
        """Edits made ready. Raises SiteError or EditError, also where they collide with those made already."""
        before = self.run.edits
        return plan(self.run.transformer, (*before, *edits)).changes[len(before) :]

    def is_quick(self, changes: Sequence[Change]) -> bool:
        """Whether a job can share a pass: an encoder's edit changes the memory, a map may look at the whole site."""
        transformer, whole = self.run.transformer, [change.edit for change in (*changes, *self.run.plan.changes)]
        if any(edit.whole for edit in whole):
            return False
        names = [change.site.name for change in changes]
        inner = transformer.encoder is not None and any(name.startswith("encoder.") for name in names)
        return not inner and not any(".cross." in name and change_has_keys(name) for name in names)

    def state_of(self, change: Change) -> int:
        """The state that a change's site is computed from; -1 for the embeddings."""
        name = change.site.name
        if name not in self._states:
            self._states[name] = state_of(self.run, change)
        return self._states[name]

    @cached_property
    def _states(self) -> dict[str, int]:
        return {}

    def reached(self, change: Change) -> list[int]:
        """The columns that a change reaches, whatever it does there."""
        return change.columns(self._owner(change).place)[0].nonzero().flatten().tolist()

    def touched(self, change: Change) -> list[int]:
        """The columns in which a change makes a difference to this run."""
        owner, keys = self._owner(change), None
        if change.site.axes[-1] == "S":
            keys = owner.source.place if owner.source is not None and ".cross." in change.site.name else owner.place
        value = self._value(change.site.name)
        same = torch.eq(change(value, owner.place, keys), value).movedim(change.site.axes.index("T"), 1)[0]
        return (~same.reshape(len(same), -1).all(1)).nonzero().flatten().tolist()

    def _owner(self, change: Change) -> Run:
        """The run that a change is made in: the encoder's, or the one that is read."""
        source = self.run.source
        own = source is None or not change.site.name.startswith(source.transformer.prefix)
        return self.run if own or source is None else source

    def _value(self, site: str) -> Tensor:
        """A site's value; the last one asked for is kept."""
        if site not in self._last:
            self._last.clear()
            self._last[site] = self.run[site]
        return self._last[site]

    @cached_property
    def _last(self) -> dict[str, Tensor]:
        return {}

    def reaches(self, change: Change, columns: Sequence[int]) -> bool:
        """Whether a change at some columns can reach the metric's: by attention, or by standing there."""
        if not columns:
            return False
        config = self.run.transformer.config
        layers = [index for index in self.mixing if index >= self.mixes_from(change)]
        if set(columns) & set(self.at):
            return True
        if not config.causal:
            return bool(layers)
        masks = [config.mask(self.mixing.index(index)) for index in layers]
        steps = sum(mask.width - 1 if isinstance(mask, Window) else len(self.here.place.positions[0]) for mask in masks)
        return any(0 < end - column <= steps for column in columns for end in self.at)

    def mixes_from(self, change: Change) -> int:
        """The first step whose attention carries a change to other columns."""
        index, (_, _, rest) = self.state_of(change), change.site.name.rpartition(f"{change.site.layer}.")
        if change.site.name in self.names or index < 0:
            return index
        part, _, value = rest.partition(".")
        inside = part == "attention" and (value in ("input", "input.scale", "key", "value"))
        return index if inside or part == "norm" else index + 1


def attention_in(parts: Sequence[object]) -> Attention | None:
    """The attention among a step's parts that looks at the text itself."""
    first = parts[0]
    return first if isinstance(first, Attention) and not isinstance(first, CrossAttention) else None


def change_has_keys(name: str) -> bool:
    """Whether a site's values stand between queries and keys."""
    return name.endswith((".scores", ".pattern"))


def unpadded(run: Run, row: int) -> Run:
    """One row of a run as a run of its own, without padding."""
    columns, row = run.columns(row), range(run.ids.shape[0])[row]
    device, whole = run.ids.device, run.recording
    place = Place(torch.arange(len(columns), device=device)[None], None, len(columns), run.place.length)
    recording = Recording(
        whole.transformer,
        whole.ids[row : row + 1, columns],
        None if whole.types is None else whole.types[row : row + 1, columns],
        tuple(_row(state, row, columns) for state in whole.states),
    )
    source = None if run.source is None else unpadded(run.source, row)
    return replace(run, recording=recording, place=place, source=source)


def _row(state: Float[Tensor, "B T D"], row: int, columns: list[int]) -> Float[Tensor, "1 P D"]:
    only = state[row : row + 1]
    return only if len(columns) == only.shape[1] else only[:, columns]

"""A ledger put to the test: its largest writers are taken away, and the model is run again without them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.config import PostNorm
from ..views.table import Table
from .edits import Edit
from .errors import LedgerError
from .rerun import edited
from .run import Run
from .writers import Group, Origin

ALIKE = 0.05  # shares nearer to 1 than this are called the same
COLUMNS = ("without", "predicted", "norms free", "happened", "in words")


@dataclass(frozen=True, eq=False)
class Asked:
    """What a ledger was asked: the run of its row, the entries by group, and how its value is read from such a run.

    `state` counts the state of the stream that the value is read from, `column` the token there; `of_source` where it
    is the encoder's.
    """

    run: Run
    groups: tuple[Group, ...]
    read: Callable[[Run], float]
    state: int
    column: int
    of_source: bool = False

    def writers(self) -> list[tuple[str, float, Origin, int]]:
        """The entries that can be taken away, largest first: name, amount, and where each comes from."""
        every = [
            (name, amount, group.origin, index)
            for group in self.groups
            if group.origin is not None
            for index, (name, amount) in enumerate(zip(group.names, group.amounts.tolist(), strict=True))
        ]
        return sorted(every, key=_size, reverse=True)

    def named(self, names: Sequence[str]) -> list[tuple[str, float, Origin, int]]:
        """The entries of these names. Raises LedgerError for a name that no writer has."""
        known = {entry[0]: entry for entry in self.writers()}
        for name in names:
            if name not in known:
                close = get_close_matches(name, known, n=1) or list(known)[:1]
                raise LedgerError(f"no writer of this ledger is named {name!r}; one is {close[0]!r}")
        return [known[name] for name in dict.fromkeys(names)]

    @property
    def owner(self) -> Run:
        """The run whose stream is read: the encoder's or the model's own."""
        return self.run.source if self.of_source and self.run.source is not None else self.run

    @property
    def additive(self) -> bool:
        """Whether the stream is the plain sum of what was written."""
        return not isinstance(self.owner.transformer.config.block, PostNorm)

    def moved(self, change: Float[Tensor, "D"]) -> float:
        """The value with a vector added to the state that it is read from, and nothing else changed."""
        states = list(self.owner.states)
        state = states[self.state].clone()
        state[0, self.column] += change.to(state)
        states[self.state] = state
        owner = self.owner.with_states(tuple(states))
        return self.read(replace(self.run, source=owner) if self.of_source else owner)


@dataclass(frozen=True)
class _Change:
    """Some writers taken away (or set to their mean): how, and what the ledger says of it."""

    name: str
    edits: tuple[Edit, ...]
    predicted: float
    write: Float[Tensor, "D"] | None

    def row(self, asked: Asked, value: float) -> tuple[object, ...]:
        """The prediction, the same with the reading norm at its own scale, and what the model does."""
        happened = asked.read(edited(asked.run, self.edits)) - value
        free = asked.moved(self.write) - value if self.write is not None and asked.additive else None
        return (self.name, self.predicted, free, happened, said(self.predicted, free, happened))


@torch.no_grad()
def check(asked: Asked, title: str, which: int | Sequence[str], over: Run | None) -> Table:
    """Writers taken away, one by one and together: what the ledger says, and what the model does.

    `which` is how many of the largest, or their names. "predicted" is the entry's loss with every norm frozen; "norms
    free" lets the reading norm take its scale anew (in a pre-norm model); "happened" is the model run again, later
    sublayers and all.
    """
    if isinstance(which, int) and which < 1:
        raise LedgerError(f"k must be at least 1, got {which}")
    if over is not None and over.transformer.config != asked.run.transformer.config:
        raise LedgerError("the mean must be over a trace of the same model, got one of another shape")
    value = asked.read(asked.run)
    entries = asked.writers()[:which] if isinstance(which, int) else asked.named(which)
    changes = [_change(entry, over) for entry in entries]
    if not changes:
        raise LedgerError("nothing in this ledger was written by the model at this token: there is nothing to check")
    rows = [change.row(asked, value) for change in changes]
    if len(changes) > 1:
        rows.append(_together(changes).row(asked, value))
    note = (
        f"the value is {value:+.4f}; predicted: what the ledger says, norms frozen; norms free: the same with the "
        "reading norm's scale anew; happened: the model run again"
    )
    way = "taken away" if over is None else "set to their mean"
    whom = "its largest writers" if isinstance(which, int) else "some writers"
    return Table(f"{title}: {whom} {way}", COLUMNS, tuple(rows), note)


def said(predicted: float, free: float | None, happened: float) -> str:
    """What became of a prediction, in words: how much of it later sublayers restored, turned round or added."""
    direct = predicted if free is None else free
    later = "later sublayers" if free is not None else "later sublayers and norms"
    if abs(happened - direct) <= max(ALIKE * abs(direct), 0.01 * abs(predicted), 1e-9):
        return "as predicted" if abs(direct - predicted) <= ALIKE * abs(predicted) else "as predicted, but for the norm"
    if abs(direct) <= 0.1 * abs(happened):
        return f"nearly all of it through {later}"
    share = happened / direct
    if share < -ALIKE:
        return f"{later} turn it round"
    if share < 1:
        return f"{later} restore {min(1 - share, 1):.0%}"
    return f"{later} add {share - 1:.0%}" if share < 3 else f"{later} make it {share:.1f} times that"


def _change(entry: tuple[str, float, Origin, int], over: Run | None) -> _Change:
    name, amount, origin, index = entry
    write = origin.write(index)
    if over is None:
        return _Change(name, origin.without(index), -amount, None if write is None else -write)
    edits, mean, along = origin.averaged(index, over)
    return _Change(name, edits, along - amount, None if write is None else mean - write)


def _together(changes: Sequence[_Change]) -> _Change:
    writes = [change.write for change in changes if change.write is not None]
    whole = torch.stack(writes).sum(0) if len(writes) == len(changes) else None
    edits = tuple(edit for change in changes for edit in change.edits)
    return _Change(f"all {len(changes)} together", edits, sum(change.predicted for change in changes), whole)


def _size(entry: tuple[str, float, Origin, int]) -> float:
    return abs(entry[1])

"""The ledger: a logit as the sum of what every part of the model wrote for it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from ..views.table import Table
from .accounting import Spot, account, final_norm, head_direction
from .checking import Asked, check
from .errors import LedgerError
from .reading import Point, state_sites
from .run import Run
from .writers import Group

MOST_SHOWN, SHOWN = 1000, 30  # a ledger of more entries than this prints so many of them


@dataclass(frozen=True)
class Ledger:
    """Entries that add up to a logit, a difference of two, or to anything else that is read off the stream.

    `value` is the model's own number, `total` the sum of the entries, `remainder` = `value` - `total` (rounding).
    Norms are frozen at their scale in the run, which makes the sum exact; it does not make an entry the effect of
    removing its part: `check()` removes it. `asked` holds the run for that.
    """

    title: str
    by: str
    entries: tuple[tuple[str, float], ...]
    value: float
    asked: Asked | None = field(default=None, repr=False, compare=False)

    @property
    def total(self) -> float:
        """The sum of all entries."""
        return math.fsum(amount for _, amount in self.entries)

    @property
    def remainder(self) -> float:
        """What the entries do not account for."""
        return self.value - self.total

    def table(self) -> Table:
        """The entries in the order of the data flow."""
        note = f"sum {self.total:+.6f}, value {self.value:+.6f}, remainder {self.remainder:+.1e}"
        return Table(f"{self.title}, by {self.by}", ("written by", "amount"), self.entries, note)

    def top(self, k: int = 10) -> Table:
        """The k largest entries by size, and all others as one, so that the column still adds up."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        ordered = sorted(self.entries, key=_size, reverse=True)
        rest = ordered[k:]
        rows = ordered[:k]
        if rest:
            rows.append((f"{len(rest)} others", math.fsum(amount for _, amount in rest)))
        return replace(self.table(), rows=tuple(rows))

    def check(self, k: int = 5, over: Run | None = None, writers: Sequence[str] = ()) -> Table:
        """What happens without the k largest writers, one by one and together, beside what the ledger predicts.

        Each is taken away at the ledger's token alone and the model is run again; with `over`, a trace, it is set to
        its mean over all tokens of that instead. `writers` are entries to take by name. Where later sublayers make up
        for the loss the table says so. Raises LedgerError for a ledger without its run, `over` another model, or a name
        that is no writer's.
        """
        if self.asked is None:
            raise LedgerError("this ledger does not hold the run that it was made from: ask the trace for it again")
        return check(self.asked, self.title, writers or k, over)

    def to_json(self) -> dict[str, object]:
        """The ledger as plain data."""
        return {
            "of": self.title,
            "by": self.by,
            "entries": [{"written by": name, "amount": amount} for name, amount in self.entries],
            "sum": self.total,
            "value": self.value,
            "remainder": self.remainder,
        }

    def __str__(self) -> str:
        """The table; of thousands of entries the largest, which `table` has all."""
        return str(self.table() if len(self.entries) <= MOST_SHOWN else self.top(SHOWN))

    __repr__ = __str__


def closed(title: str, by: str, value: float, asked: Asked) -> Ledger:
    """A ledger of the entries of what was asked."""
    amounts = torch.cat([group.amounts.cpu() for group in asked.groups]).tolist()
    names = [name for group in asked.groups for name in group.names]
    return Ledger(title, by, tuple(zip(names, amounts, strict=True)), value, asked)


def ledger(spot: Spot, token: int, minus: int | None, by: str, index: int = -1) -> Ledger:
    """Direct logit attribution (Elhage et al. 2021): attr(w) = ((w - mean(w)) * scale * gamma) . W_U[token].

    For RMSNorm no mean is taken; a post-norm model's norms are gone through one after another, each frozen. The final
    norm's shift and the unembedding's bias make the entries "final.bias" and "unembed.bias". Entries are computed and
    added in float64 from the writes as the model made them. `index` counts the states: of an earlier one, the logit
    that the logit lens reads there. Raises LedgerError for a model whose head is not linear.
    """
    index = range(len(spot.point.recording.states))[index]
    point = at_depth(spot.point, index)
    transformer = point.transformer
    if transformer.head is not None:
        raise LedgerError(
            "a masked-language logit stands behind its head's activation, so it is no sum of writes; the nearest exact "
            "question is ledger(direction=trace.direction(token)), with the activation's act(z)/z frozen"
        )
    direction, ends = unembedding(point, token, minus), []
    norm = final_norm(point)
    if norm is not None:
        direction, ends = norm.before(point, point.state(-1)[0, 0], direction)
    groups = (*account(spot, direction, by, index), *ends, *_unembedded(point, token, minus))
    title = f"logit of {point.label(token)}" + ("" if minus is None else f" minus logit of {point.label(minus)}")
    if index < len(spot.point.recording.states) - 1:
        title += f" as the lens reads it at {state_sites(transformer)[index]}"
    read = partial(_logit, index=index, column=point.position, token=token, minus=minus)
    return closed(
        title, by, _difference(point.logits, token, minus), Asked(spot.run, groups, read, index, point.position)
    )


def direction_ledger(spot: Spot, direction: Float[Tensor, "D"], by: str) -> Ledger:
    """Who wrote the final stream's product with a direction (a probe, a feature, `Trace.direction`)."""
    direction = checked_direction(direction, spot.point.transformer.config.d_model, "stream")
    return state_ledger(spot, -1, direction, by, "final stream along the direction")


def state_ledger(spot: Spot, index: int, direction: Float[Tensor, "D"], by: str, title: str) -> Ledger:
    """Who wrote a state's product with a direction; `index` counts the states."""
    point = spot.point
    index = range(len(point.recording.states))[index]
    direction = direction.to(point.state(index).device).double()
    read = partial(_along, index=index, column=point.position, direction=direction)
    asked = Asked(spot.run, account(spot, direction, by, index), read, index, point.position)
    return closed(title, by, read(spot.run), asked)


def checked_direction(direction: object, width: int, of: str) -> Float[Tensor, "N"]:
    """The direction itself. Raises LedgerError for what is none."""
    if isinstance(direction, Tensor) and tuple(direction.shape) == (width,):
        faulty = int((~direction.isfinite()).sum())
        if not faulty:
            return direction
        got = f"{faulty} that are not finite"
    else:
        got = f"shape {list(direction.shape)}" if isinstance(direction, Tensor) else type(direction).__name__
    raise LedgerError(f"a direction of this model's {of} is a tensor of {width} finite numbers, got {got}")


def logit_direction(spot: Spot, token: int, minus: int | None, index: int = -1) -> Float[Tensor, "D"]:
    """What a logit (or the difference of two) reads of the final stream, in float64: everything behind it frozen.

    Of another state: what the logit that the lens reads there reads of it.
    """
    point = at_depth(spot.point, index)
    direction, norm = unembedding(point, token, minus), final_norm(point)
    if point.transformer.head is not None:
        direction = head_direction(point, direction)
    return direction if norm is None else norm.before(point, point.state(-1)[0, 0], direction)[0]


def at_depth(point: Point, index: int) -> Point:
    """The same token with another state in the place of the final one, as a logit lens reads it."""
    states = point.recording.states
    return replace(point, recording=replace(point.recording, states=(*states[:-1], states[index])))


def unembedding(point: Point, token: int, minus: int | None) -> Float[Tensor, "D"]:
    """The row of the unembedding that a logit reads, or the difference of two, in float64."""
    rows = point.transformer.W_U
    direction = rows[token].double() - (0.0 if minus is None else rows[minus].double())
    return direction * point.transformer.config.logit_scale


def _unembedded(point: Point, token: int, minus: int | None) -> list[Group]:
    """What the unembedding adds to the product: its bias, and an edit of the logits."""
    transformer, found = point.transformer, []
    bias = None if transformer.unembed is None else transformer.unembed.bias
    if bias is not None:
        found = [_one("unembed.bias", _difference(bias.double(), token, minus) * transformer.config.logit_scale)]
    site = f"{transformer.prefix}logits"
    if site in point.edited:
        here = replace(point.here, looks={name: see for name, see in (point.here.looks or {}).items() if name != site})
        added = point.logits.double() - replace(point, here=here).logits.double()
        found.append(_one(f"edit of {site}", _difference(added, token, minus)))
    return found


def _one(name: str, amount: float) -> Group:
    return Group((name,), torch.tensor([amount], dtype=torch.float64))


def _difference(values: Float[Tensor, "V"], token: int, minus: int | None) -> float:
    return float(values[token]) - (0.0 if minus is None else float(values[minus]))


def _logit(run: Run, index: int, column: int, token: int, minus: int | None) -> float:
    """A logit, or the difference of two, as a run has it; of an earlier state as the lens reads it."""
    run = run.with_states((*run.states[:-1], run.states[index]))
    return _difference(run.logits_at(0, [column])[0], token, minus)


def _along(run: Run, index: int, column: int, direction: Float[Tensor, "D"]) -> float:
    """A state's product with a direction, as a run has it."""
    return float(run.states[index][0, column].double() @ direction)


def _size(entry: tuple[str, float]) -> float:
    return abs(entry[1])

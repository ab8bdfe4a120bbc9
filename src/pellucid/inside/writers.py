"""Who writes to the stream, as a ledger names them: what each wrote at one token, and the edits that take it away."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.attention import Attention
from .edits import Edit, Source, map_with, mean, scale
from .errors import LedgerError


@runtime_checkable
class Origin(Protocol):
    """Where the entries of a group come from."""

    def write(self, entry: int) -> Float[Tensor, "D"] | None:
        """What the entry added to the stream, in float64; None where a norm stands between."""
        ...

    def without(self, entry: int) -> tuple[Edit, ...]:
        """The edits that take this away and leave all else to the model."""
        ...

    def averaged(self, entry: int, over: Source) -> tuple[tuple[Edit, ...], Float[Tensor, "D"], float]:
        """The edits that put its mean over a trace there, that mean's write, and what the ledger would say of it."""
        ...


@dataclass(frozen=True, eq=False)
class Group:
    """Entries that belong together: their names, their amounts in float64, and where they come from (None: a constant).

    Constants (biases, what an edit put there) are entries like all others, but there is nothing to take away.
    """

    names: tuple[str, ...]
    amounts: Float[Tensor, "N"]
    origin: Origin | None = None


@dataclass(frozen=True, eq=False)
class Values:
    """Entries that are values of one site at one token: a whole update, or every head's or neuron's share of it.

    `axis` is "" for an update (the value [D] is the write), "head" for values [H K] through `matrix` W_O [H K D],
    "neuron" for values [F] through `matrix` W_down [D F]. `direction` is what the ledger asks along, at this depth.
    """

    site: str
    position: int
    value: Tensor
    direction: Float[Tensor, "D"]
    normed: bool
    axis: str = ""
    matrix: Tensor | None = None

    def write(self, entry: int) -> Float[Tensor, "D"] | None:
        return None if self.normed else self._carried(entry, self.value)

    def without(self, entry: int) -> tuple[Edit, ...]:
        return (scale(self.site, 0.0, position=self.position, **self._where(entry)),)

    def averaged(self, entry: int, over: Source) -> tuple[tuple[Edit, ...], Float[Tensor, "D"], float]:
        value = mean(self.site, over, pooled=True).value
        assert value is not None, "a mean is a value"
        write = self._carried(entry, value)
        chosen = value[entry] if self.axis else value
        edit = map_with(self.site, partial(_put, value=chosen), position=self.position, **self._where(entry))
        return (edit,), write, float(write @ self.direction)

    def amounts(self) -> Float[Tensor, "N"]:
        """Every entry's product with the direction."""
        value, matrix = self.value.double(), self.matrix
        if matrix is None:
            return (value @ self.direction)[None]
        if self.axis == "head":
            return torch.einsum("hk,hkd,d->h", value, matrix.double(), self.direction)
        return value * (self.direction @ matrix.double())

    def whole(self) -> Float[Tensor, "D"]:
        """All entries' writes together."""
        value, matrix = self.value.double(), self.matrix
        if matrix is None:
            return value
        return torch.einsum("hk,hkd->d", value, matrix.double()) if self.axis == "head" else matrix.double() @ value

    def _where(self, entry: int) -> dict[str, Any]:
        return {self.axis: entry} if self.axis else {}

    def _carried(self, entry: int, value: Tensor) -> Float[Tensor, "D"]:
        value = value.to(self.direction)
        if self.matrix is None:
            return value
        if self.axis == "head":
            return value[entry] @ self.matrix[entry].double()
        return value[entry] * self.matrix[:, entry].double()


@dataclass(frozen=True, eq=False)
class Sources:
    """What every head of one attention layer brought from every position: A[q, k] v_k W_O; or all heads together.

    `pattern` is H x N and `values` N x H x K for the N keys in sight, in float64; `columns` are where they stand.
    """

    part: Attention
    position: int
    pattern: Float[Tensor, "H N"]
    values: Float[Tensor, "N H K"]
    keys: tuple[int, ...]
    columns: tuple[int, ...]
    direction: Float[Tensor, "D"]
    normed: bool
    by_head: bool

    def write(self, entry: int) -> Float[Tensor, "D"] | None:
        if self.normed:
            return None
        head, key = self._at(entry)
        heads = slice(None) if head is None else slice(head, head + 1)
        mixed = self.pattern[heads, key, None] * self.values[key, heads]
        return torch.einsum("hk,hkd->d", mixed, self.part.W_O[heads].double())

    def without(self, entry: int) -> tuple[Edit, ...]:
        head, key = self._at(entry)
        where: dict[str, Any] = {} if head is None else {"head": head}
        function = partial(_drop, column=self.columns[key])
        return (map_with(f"{self.part.name}.pattern", function, position=self.position, **where),)

    def averaged(self, entry: int, over: Source) -> tuple[tuple[Edit, ...], Float[Tensor, "D"], float]:
        raise LedgerError(_NO_MEAN)

    def amounts(self) -> Float[Tensor, "N"]:
        """Every entry's product with the direction, head after head."""
        read = torch.einsum("nhk,hkd,d->hn", self.values, self.part.W_O.double(), self.direction) * self.pattern
        return read.flatten() if self.by_head else read.sum(0)

    def whole(self) -> Float[Tensor, "D"]:
        """All entries' writes together."""
        return torch.einsum("hn,nhk,hkd->d", self.pattern, self.values, self.part.W_O.double())

    def names(self, labels: Sequence[str], kind: str) -> tuple[str, ...]:
        """Every entry's name, where `labels` are the tokens by position."""
        places = [f"{kind}position {key} ({labels[key]})" for key in self.keys]
        if not self.by_head:
            return tuple(places)
        return tuple(f"{self.part.name} head {head} from {place}" for head in range(self.part.H) for place in places)

    def _at(self, entry: int) -> tuple[int | None, int]:
        return divmod(entry, len(self.keys)) if self.by_head else (None, entry)


@dataclass(frozen=True, eq=False)
class Several:
    """Entries that are the sums of entries of several layers: all that came from a position."""

    members: tuple[tuple[tuple[Origin, int], ...], ...]

    def write(self, entry: int) -> Float[Tensor, "D"] | None:
        writes = [origin.write(index) for origin, index in self.members[entry]]
        known = [write for write in writes if write is not None]
        return torch.stack(known).sum(0) if len(known) == len(writes) else None

    def without(self, entry: int) -> tuple[Edit, ...]:
        return tuple(edit for origin, index in self.members[entry] for edit in origin.without(index))

    def averaged(self, entry: int, over: Source) -> tuple[tuple[Edit, ...], Float[Tensor, "D"], float]:
        raise LedgerError(_NO_MEAN)


def summed(groups: Sequence[Group]) -> tuple[Group, ...]:
    """The same entries with what came from a position in all layers as one, where the first layer's stood."""
    amounts: dict[tuple[bool, int], list[float]] = {}
    members: dict[tuple[bool, int], list[tuple[Origin, int]]] = {}
    names: dict[tuple[bool, int], str] = {}
    rest: list[Group] = []
    first = None
    for group in groups:
        if not isinstance(group.origin, Sources):
            rest.append(group)
            continue
        first = len(rest) if first is None else first
        crossing = group.origin.part.name.endswith(".cross")
        for index, amount in enumerate(group.amounts.tolist()):
            at = (crossing, group.origin.keys[index])
            names[at] = group.names[index]
            amounts.setdefault(at, []).append(amount)
            members.setdefault(at, []).append((group.origin, index))
    if first is None:
        return tuple(rest)
    order = sorted(names)
    totals = torch.tensor([sum(amounts[at]) for at in order], dtype=torch.float64)
    whole = Group(tuple(names[at] for at in order), totals, Several(tuple(tuple(members[at]) for at in order)))
    return (*rest[:first], whole, *rest[first:])


_NO_MEAN = "what came from a position can be taken away, not set to a mean: check() without over=, or a ledger by head"


def _put(here: Tensor, value: Tensor) -> Tensor:
    return value.to(here).expand_as(here)


def _drop(pattern: Tensor, column: int) -> Tensor:
    pattern = pattern.clone()
    pattern[..., column] = 0.0
    return pattern

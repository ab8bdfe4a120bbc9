"""The ledger: a logit as the sum of what every part of the model wrote for it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from ..model.config import LayerNorm, Learned
from ..model.transformer import Attention
from ..views.table import Table
from .reading import Point

WAYS = ("sublayer", "head")


@dataclass(frozen=True)
class Ledger:
    """Entries that add up to a logit (or to the difference of two), and by how much they do not.

    `value` is the model's own logit, `total` the sum of the entries, `remainder` = `value` - `total` (rounding).
    The final norm's scale is frozen at its value in the run, which makes the sum exact; it does not make an entry the
    effect of removing its part.
    """

    token: str
    minus: str | None
    by: str
    entries: tuple[tuple[str, float], ...]
    value: float

    @property
    def total(self) -> float:
        """The sum of all entries."""
        return sum(amount for _, amount in self.entries)

    @property
    def remainder(self) -> float:
        """What the entries do not account for."""
        return self.value - self.total

    @property
    def title(self) -> str:
        """What is accounted for."""
        return f"logit of {self.token}" + (f" minus logit of {self.minus}" if self.minus is not None else "")

    def table(self) -> Table:
        """The entries in the order of the data flow."""
        note = f"sum {self.total:+.6f}, logit {self.value:+.6f}, remainder {self.remainder:+.1e}"
        return Table(f"{self.title}, by {self.by}", ("written by", "amount"), self.entries, note)

    def top(self, k: int = 10) -> Table:
        """The k largest entries by size, and all others as one, so that the column still adds up."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        ordered = sorted(self.entries, key=_size, reverse=True)
        rest = ordered[k:]
        rows = ordered[:k]
        if rest:
            rows.append((f"{len(rest)} others", sum(amount for _, amount in rest)))
        return replace(self.table(), rows=tuple(rows))

    def to_json(self) -> dict[str, object]:
        """The ledger as plain data."""
        return {
            "token": self.token,
            "minus": self.minus,
            "by": self.by,
            "entries": [{"written by": name, "amount": amount} for name, amount in self.entries],
            "sum": self.total,
            "logit": self.value,
            "remainder": self.remainder,
        }

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__


def ledger(point: Point, token: int, minus: int | None, by: str) -> Ledger:
    """Direct logit attribution (Elhage et al. 2021): attr(w) = ((w - mean(w)) * scale * gamma) . W_U[token].

    For RMSNorm no mean is taken. The norm's shift and the bias of the unembedding make the entry "final.bias". Entries
    are computed and added in float64 from the writes as the model made them.
    """
    if by not in WAYS:
        raise ValueError(f"a ledger goes by {' or '.join(map(repr, WAYS))}, got {by!r}")
    transformer = point.transformer
    direction = transformer.W_U[token].double()
    value = float(point.logits[token])
    if minus is not None:
        direction = direction - transformer.W_U[minus].double()
        value -= float(point.logits[minus])
    direction = direction * transformer.config.logit_scale
    through = _through_norm(point, direction)
    entries = [(name, float(write.double() @ through)) for name, write in _writes(point, by)]
    shift = transformer.final_norm.bias
    if shift is not None:
        entries.append(("final.bias", float(shift.double() @ direction)))
    return Ledger(point.label(token), None if minus is None else point.label(minus), by, tuple(entries), value)


def _through_norm(point: Point, direction: Float[Tensor, "D"]) -> Float[Tensor, "D"]:
    """The direction in the final stream that the unembedding reads, the norm's scale frozen at its run value."""
    norm = point.transformer.final_norm
    through = direction * norm.weight.double() * norm.scale(point.state(-1).double())[0, 0]
    return through - through.mean() if isinstance(norm.record, LayerNorm) else through


def _writes(point: Point, by: str) -> Iterator[tuple[str, Float[Tensor, "D"]]]:
    """Everything that was added to the stream at one token, in the order of the data flow."""
    transformer = point.transformer
    yield "embed.token", point.read("embed.token")
    if isinstance(transformer.config.positions, Learned):
        yield "embed.position", point.read("embed.position")
    for step in transformer.steps:
        for part in step.parts:
            if by == "head" and isinstance(part, Attention):
                yield from _head_writes(point, part)
            else:
                yield part.name, point.read(f"{part.name}.update")


def _head_writes(point: Point, attention: Attention) -> Iterator[tuple[str, Float[Tensor, "D"]]]:
    heads = point.read(f"{attention.name}.heads")
    for head in range(attention.H):
        yield f"{attention.name} head {head}", heads[head].double() @ attention.W_O[head].double()
    if attention.out.bias is not None:
        yield f"{attention.name} bias", attention.out.bias


def _size(entry: tuple[str, float]) -> float:
    return abs(entry[1])

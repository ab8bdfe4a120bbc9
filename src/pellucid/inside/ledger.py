"""The ledger: a logit as the sum of what every part of the model wrote for it."""

from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from ..views.table import Table
from .accounting import entries, head_direction, through
from .errors import LedgerError
from .reading import Point

WAYS = ("sublayer", "head")


@dataclass(frozen=True)
class Ledger:
    """Entries that add up to a logit, a difference of two, or the final stream along a direction.

    `value` is the model's own number, `total` the sum of the entries, `remainder` = `value` - `total` (rounding).
    Norms are frozen at their scale in the run, which makes the sum exact; it does not make an entry the effect of
    removing its part.
    """

    title: str
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
            rows.append((f"{len(rest)} others", sum(amount for _, amount in rest)))
        return replace(self.table(), rows=tuple(rows))

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
        return str(self.table())

    __repr__ = __str__


def ledger(point: Point, token: int, minus: int | None, by: str) -> Ledger:
    """Direct logit attribution (Elhage et al. 2021): attr(w) = ((w - mean(w)) * scale * gamma) . W_U[token].

    For RMSNorm no mean is taken; a post-norm model's norms are gone through one after another, each frozen. The final
    norm's shift and the unembedding's bias make the entries "final.bias" and "unembed.bias". Entries are computed and
    added in float64 from the writes as the model made them. Raises LedgerError for a model whose head is not linear.
    """
    _check(by)
    transformer = point.transformer
    if transformer.head is not None:
        raise LedgerError(
            "a masked-language logit stands behind its head's activation, so it is no sum of writes; the nearest exact "
            "question is ledger(direction=trace.direction(token)), with the activation's act(z)/z frozen"
        )
    value = float(point.logits[token]) - (0.0 if minus is None else float(point.logits[minus]))
    direction, ends = unembedding(point, token, minus), []
    bias = None if transformer.unembed is None else transformer.unembed.bias
    if bias is not None:
        other = 0.0 if minus is None else float(bias[minus].double())
        ends.append(("unembed.bias", (float(bias[token].double()) - other) * transformer.config.logit_scale))
    if transformer.final_norm is not None:
        direction, shift = through(transformer.final_norm, point.state(-1)[0, 0], direction)
        ends += [] if shift is None else [("final.bias", shift)]
    title = f"logit of {point.label(token)}" + ("" if minus is None else f" minus logit of {point.label(minus)}")
    return Ledger(title, by, (*entries(point, direction, by), *reversed(ends)), value)


def direction_ledger(point: Point, direction: Float[Tensor, "D"], by: str) -> Ledger:
    """Who wrote the final stream's product with a direction (a probe, a feature, `Trace.direction`)."""
    _check(by)
    d = point.transformer.config.d_model
    if not isinstance(direction, Tensor) or tuple(direction.shape) != (d,) or not bool(direction.isfinite().all()):
        got = f"shape {list(direction.shape)}" if isinstance(direction, Tensor) else type(direction).__name__
        raise LedgerError(f"a direction of this model's stream is a tensor of {d} finite numbers, got {got}")
    direction = direction.to(point.state(-1).device).double()
    value = float(point.state(-1)[0, 0].double() @ direction)
    return Ledger("final stream along the direction", by, entries(point, direction, by), value)


def logit_direction(point: Point, token: int, minus: int | None) -> Float[Tensor, "D"]:
    """What a logit (or the difference of two) reads of the final stream, in float64: everything behind it frozen."""
    direction = unembedding(point, token, minus)
    if point.transformer.head is not None:
        direction = head_direction(point, direction)
    if point.transformer.final_norm is not None:
        direction, _ = through(point.transformer.final_norm, point.state(-1)[0, 0], direction)
    return direction


def unembedding(point: Point, token: int, minus: int | None) -> Float[Tensor, "D"]:
    """The row of the unembedding that a logit reads, or the difference of two, in float64."""
    rows = point.transformer.W_U
    direction = rows[token].double() - (0.0 if minus is None else rows[minus].double())
    return direction * point.transformer.config.logit_scale


def _check(by: str) -> None:
    if by not in WAYS:
        raise LedgerError(f"a ledger goes by {' or '.join(map(repr, WAYS))}, got {by!r}")


def _size(entry: tuple[str, float]) -> float:
    return abs(entry[1])

"""Linear readings: vectors that a sublayer makes of what it is given by a matrix, a bias and a rotation."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.attention import Attention, CrossAttention
from ..model.layers import Linear
from ..model.place import columns, visible
from ..model.rotary import rotate
from .accounting import ReadingNorm, Spot, constant
from .errors import LedgerError
from .ledger import checked_direction
from .run import Run
from .writers import Group


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked of a site: the part of it that is meant (head=, kv_head=, neuron=), and along which direction.

    A query may be asked along the key that it meets (key=), a key along the query that reads it (query=).
    """

    site: str
    along: Float[Tensor, "N"] | None
    by: str
    where: Mapping[str, int]

    def chosen(self, name: str, size: int) -> int | None:
        """One number of those given. Raises LedgerError where there are not so many."""
        found = self.where.get(name)
        if found is not None and not (isinstance(found, int) and 0 <= found < size):
            raise LedgerError(f"{self.site} has {name} 0..{size - 1}, got {found!r}")
        return found

    def needs(self, *allowed: str) -> None:
        """Raise LedgerError for what narrows another site than this one."""
        if unknown := [name for name in self.where if name not in allowed]:
            told = f"is narrowed by {', '.join(allowed)}" if allowed else "is not narrowed"
            raise LedgerError(f"{self.site} {told}, got {', '.join(unknown)}")


@dataclass(frozen=True, eq=False)
class Reading:
    """One vector that is read linearly: `weight` [N D] of what a part is given (None: that itself), `bias`, `rotation`.

    `index` is its place on the site's axis after the positions; `direction` [N] what is asked along.
    """

    direction: Float[Tensor, "N"]
    title: str
    weight: Float[Tensor, "N D"] | None = None
    bias: Float[Tensor, "N"] | None = None
    index: int | None = None
    rotation: tuple[Tensor, Tensor] | None = None

    def before(self, name: str) -> tuple[Float[Tensor, "D"], list[Group]]:
        """The direction as one of what is given, and the bias as an entry."""
        direction = (
            self.direction if self.rotation is None else _turned(self.direction, self.rotation[0], -self.rotation[1])
        )
        found = [] if self.bias is None else [constant(f"{name} bias", self.bias, direction)]
        return (direction if self.weight is None else direction @ self.weight.double()), found

    def of(self, given: Float[Tensor, "D"]) -> Float[Tensor, "N"]:
        """The vector itself, made anew of what is given."""
        made = given.double() if self.weight is None else self.weight.double() @ given.double()
        made = made if self.bias is None else made + self.bias.double()
        return made if self.rotation is None else _turned(made, *self.rotation)

    def value(self, run: Run, site: str, column: int) -> float:
        """The product with the direction, as a run has it."""
        return float(self.picked(run[site][0, column]) @ self.direction)

    def picked(self, value: Tensor) -> Float[Tensor, "N"]:
        """The vector out of the site's value at one token."""
        return (value if self.index is None else value[self.index]).double().reshape(-1)


@dataclass(frozen=True, eq=False)
class Given:
    """What a sublayer is given at one token: a state, counted in steps, through a norm if there is one."""

    spot: Spot
    state: int
    norm: ReadingNorm | None
    site: str

    def before(self, direction: Float[Tensor, "D"]) -> tuple[Float[Tensor, "D"], list[Group]]:
        """A direction of it as one of the state; the norm's shift and an edit of it are entries."""
        point = self.spot.point
        x = point.state(self.state)[0, 0]
        if self.norm is not None:
            return self.norm.before(point, x, direction)
        if self.site not in point.edited:
            return direction, []
        return direction, [constant(f"edit of {self.site}", point.read(self.site).double() - x.double(), direction)]

    def value(self) -> Float[Tensor, "D"]:
        """It, as the run had it."""
        return self.spot.point.read(self.site) if self.site else self.spot.point.state(self.state)[0, 0]


def along_direction(question: Question, width: int, spot: Spot, of: str = "stream") -> Reading:
    """The site itself (or what is chosen in it) along the direction that was given."""
    if question.along is None:
        raise LedgerError(f"{question.site} is a vector: say along which direction it is asked, with along=")
    along = checked_direction(question.along, width, of)
    along = along.to(spot.point.state(0).device).double()
    return Reading(along, f"{question.site} at {spot.label()} along the direction")


def of_neurons(spot: Spot, question: Question, linear: Linear) -> Reading:
    """One neuron before its activation, or all of them along a direction."""
    question.needs("neuron")
    bias = linear.bias
    neuron = question.chosen("neuron", linear.weight.shape[0])
    if neuron is None:
        reading = along_direction(question, linear.weight.shape[0], spot, "neurons")
        return replace(reading, weight=linear.weight, bias=bias)
    if question.along is not None:
        raise LedgerError(f"{question.site} of one neuron is a number: give neuron= or along=, not both")
    title = f"{question.site} of neuron {neuron} at {spot.label()}"
    rows = slice(neuron, neuron + 1)
    one = torch.ones(1, dtype=torch.float64, device=linear.weight.device)
    return Reading(one, title, linear.weight[rows], None if bias is None else bias[rows], neuron)


def of_attention(run: Run, spot: Spot, question: Question, part: Attention) -> Reading:
    """A head's query, key or value along a direction, or along the key (the query) that it meets."""
    what = question.site.rpartition(".")[2]
    meets = {"query": "key", "key": "query"}.get(what)
    question.needs("head", *(["kv_head"] if what != "query" else []), *([meets] if meets else []))
    head, group = question.chosen("head", part.H), question.chosen("kv_head", part.G)
    if (head is None) == (group is None):
        raise LedgerError(f"{question.site} is of one head: give head=, from 0 to {part.H - 1}")
    kv = group if head is None else head // (part.H // part.G)
    index = head if what == "query" else kv
    assert index is not None, "one of the two was given"
    assert kv is not None, "one of the two was given"
    title = f"{question.site} of " + (f"key-value head {group}" if head is None else f"head {head}")
    other = None if meets is None else question.where.get(meets)
    if other is None:
        if question.along is None and meets:
            raise LedgerError(
                f"{question.site} is a vector: say which {meets} it meets, with {meets}= (a position), or give along="
            )
        along = along_direction(question, part.K, spot, "heads").direction
        title = f"{title} at {spot.label()} along the direction"
    elif head is None or question.along is not None:
        raise LedgerError(
            f"{meets}= is the direction, and of one query head: give head= and neither kv_head= nor along="
        )
    else:
        along, met = _met(run, spot, part, (head, kv), (what, other))
        title = f"{title} at {spot.label()} along the {meets} at {met}"
    rotation = None
    if spot.point.here.rotation is not None and what != "value" and not isinstance(part, CrossAttention):
        cos, sin = spot.point.here.rotation
        at = spot.point.position
        rotation = cos[:, at : at + 1].double(), sin[:, at : at + 1].double()
    weight = {"query": part.W_Q, "key": part.W_K, "value": part.W_V}[what][index].T
    return Reading(along, title, weight, _bias(part, what, index), index, rotation)


def _met(
    run: Run, spot: Spot, part: Attention, heads: tuple[int, int], asked: tuple[str, int]
) -> tuple[Float[Tensor, "K"], str]:
    """The key (or query) that a query (or key) meets at a position, times the score's scale; and that position."""
    (head, kv), (what, other) = heads, asked
    keys = run.source if isinstance(part, CrossAttention) and run.source is not None else run
    partner = keys if what == "query" else run
    column = partner.column(0, other)
    query, key = (spot.point.position, column) if what == "query" else (column, spot.point.position)
    label = spot.label(partner, range(len(partner.columns()))[other])
    if not bool(visible(part.mask, columns(run.place, [query]), keys.place)[0, 0, key]):
        raise LedgerError(f"the two do not meet: the query may not attend to the key ({spot.label()} and {label})")
    site, index = ("key", kv) if what == "query" else ("query", head)
    return run[f"{part.name}.{site}"][0, column, index].double() * part.scale, label


def _bias(part: Attention, what: str, index: int) -> Float[Tensor, "K"] | None:
    """One head's share of the bias of the matrix that makes queries, keys and values."""
    if isinstance(part, CrossAttention):
        bias = part.query.bias if what == "query" else part.kv.bias
        before = {"query": 0, "key": 0, "value": part.G}[what]
    else:
        bias, before = part.qkv.bias, {"query": 0, "key": part.H, "value": part.H + part.G}[what]
    return None if bias is None else bias.unflatten(0, (-1, part.K))[before + index]


def _turned(x: Float[Tensor, "K"], cos: Tensor, sin: Tensor) -> Float[Tensor, "K"]:
    """A head's vector turned by the angles of its position."""
    return rotate(x[None, None, None], cos, sin)[0, 0, 0]

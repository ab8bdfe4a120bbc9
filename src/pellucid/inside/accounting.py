"""Where a direction in the stream comes from: everything that was written, through the frozen norms.

A state of a pre-norm model is the plain sum of what was written. In a post-norm model each sum went through a norm,
x' = gamma * centred(x + F(x)) * scale + beta, which is linear once its scale is held at its value in the run. So a
direction is taken backwards: through each norm to the sum before it, leaving the norm's shift as an entry.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.activation import activate
from ..model.attention import Attention, CrossAttention
from ..model.config import RMSNorm
from ..model.layers import Norm
from ..model.place import column, row_of, visible
from ..model.transformer import FeedForward, Step
from .errors import LedgerError
from .reading import Point, state_sites
from .run import Run
from .writers import Group, Sources, Values, summed

WAYS = ("sublayer", "head", "neuron", "source", "head and source")


@dataclass(frozen=True)
class Spot:
    """One token of one row, and the run of that row alone."""

    run: Run
    point: Point

    @classmethod
    def of(cls, run: Run, row: int, position: int) -> "Spot":
        """By the token's number among the row's tokens. Raises ValueError where there is none."""
        at = run.column(row, position)
        one = alone(run, row)
        return cls(one, Point(one.recording, one.present(0), at, run.tokenizer, frozenset(one.plan.sites())))

    @property
    def position(self) -> int:
        """The token's absolute position."""
        return int(self.point.here.place.positions[0, self.point.position])

    def label(self, run: Run | None = None, position: int | None = None) -> str:
        """A position and its token, as "position 4 (␣Paris)": this one, or one of this or another run."""
        position = self.position if position is None else position
        return f"position {position} ({(run or self.run).tokens()[position]})"


def alone(run: Run, row: int) -> Run:
    """The run of one row of a batch, with its edits."""
    row = range(run.ids.shape[0])[row]
    source = None if run.source is None else alone(run.source, row)
    return replace(run, recording=run.recording.row(row), place=row_of(run.place, row), source=source)


def check_way(by: str) -> None:
    """Raise LedgerError for a way of splitting that there is not."""
    if by not in WAYS:
        raise LedgerError(f"a ledger goes by {', '.join(map(repr, WAYS[:-1]))} or {WAYS[-1]!r}, got {by!r}")


def account(spot: Spot, direction: Float[Tensor, "D"], by: str, until: int | None = None) -> tuple[Group, ...]:
    """What every part of the model wrote along a direction of a state of the stream, in the order of the data flow.

    `until` counts the state in steps, as `states` does (None: the final one). What an edit of a state put there is an
    entry of its own, "edit of 3.stream"; one of an update belongs to its part.
    """
    check_way(by)
    point, normed = spot.point, False
    found: list[Group] = []
    for index, step in reversed(list(enumerate(point.transformer.steps[:until]))):
        found += _edited(point, index + 1, direction)
        if step.after is not None:
            direction, shifts = _before_sum(point, index, step, direction)
            found, normed = [*found, *shifts], True
        for part in reversed(step.parts):
            found += reversed(list(_written(spot, part, direction, by, normed)))
    found += _edited(point, 0, direction)
    groups = (*_embeddings(spot, direction, normed), *reversed(found))
    return summed(groups) if by == "source" else groups


def written_by(spot: Spot, name: str, direction: Float[Tensor, "D"], by: str) -> tuple[Group, ...]:
    """What `account` says of one sublayer, "3.ffn", alone. Raises LedgerError for a name that is none's."""
    check_way(by)
    point = spot.point
    for index, step in reversed(list(enumerate(point.transformer.steps))):
        if step.after is not None:
            direction, _ = _before_sum(point, index, step, direction)
        for part in step.parts:
            if part.name == name:
                normed = any(later.after is not None for later in point.transformer.steps[index:])
                return tuple(_written(spot, part, direction, by, normed))
    raise LedgerError(f"a sublayer is named as '0.ffn' or '0.attention' is, within the stack; got {name!r}")


def through(
    point: Point, norm: Norm, scale_site: str, x: Float[Tensor, "D"], direction: Float[Tensor, "D"]
) -> tuple[Float[Tensor, "D"], float | None]:
    """A direction after a norm as one before it, its scale frozen, and what the norm's shift adds (if any).

    The scale is the norm's own at `x`, or what an edit put there.
    """
    scale = scale_of(point, norm, scale_site, x)
    before = direction * norm.weight.double() * scale
    shift = None if norm.bias is None else float(norm.bias.double() @ direction)
    return before if isinstance(norm.record, RMSNorm) else before - before.mean(), shift


@dataclass(frozen=True)
class ReadingNorm:
    """A norm that something is read through: the sites of its scale and of what it gives, and its shift's name."""

    norm: Norm
    scale: str
    site: str
    shift: str

    def before(
        self, point: Point, x: Float[Tensor, "D"], direction: Float[Tensor, "D"]
    ) -> tuple[Float[Tensor, "D"], list[Group]]:
        """A direction of what is read as one of the state `x`; the shift and an edit of what is read are entries."""
        before, _ = through(point, self.norm, self.scale, x, direction)
        found = [] if self.norm.bias is None else [constant(self.shift, self.norm.bias, direction)]
        if self.site in point.edited:
            scale = scale_of(point, self.norm, self.scale, x)[None, None]
            computed = self.norm.with_scale(x.double()[None, None], scale)[0, 0]
            found.append(constant(f"edit of {self.site}", point.read(self.site).double() - computed, direction))
        return before, found


def final_norm(point: Point) -> ReadingNorm | None:
    """The norm that the final stream is read through, where there is one."""
    norm, name = point.transformer.final_norm, f"{point.transformer.prefix}final"
    return None if norm is None else ReadingNorm(norm, f"{name}.scale", f"{name}.normed", f"{name}.bias")


def scale_of(point: Point, norm: Norm, scale_site: str, x: Float[Tensor, "D"]) -> Float[Tensor, ""]:
    """A norm's scale in the run, in float64."""
    if scale_site in point.edited:
        return point.read(scale_site).double()
    return norm.scale(x.double()[None, None])[0, 0]


def constant(name: str, write: Float[Tensor, "N"], direction: Float[Tensor, "N"]) -> Group:
    """An entry that nothing at this token made: a bias, or what an edit put there."""
    return Group((name,), (write.double() @ direction)[None])


def head_direction(point: Point, direction: Float[Tensor, "D"]) -> Float[Tensor, "D"]:
    """A direction after BERT's prediction head as one of the final stream, the norm's scale and act(z)/z frozen."""
    head = point.transformer.head
    assert head is not None, "asked for only where there is one"
    z = point.read(f"{head.name}.dense").double()
    direction, _ = through(point, head.norm, f"{head.name}.scale", point.read(f"{head.name}.active"), direction)
    ratio = torch.where(z == 0, 0.5, activate(head.activation, z) / z)
    return (direction * ratio) @ head.dense.weight.double()


def _edited(point: Point, index: int, direction: Float[Tensor, "D"]) -> list[Group]:
    """What an edit of a state added to what was computed for it."""
    name = state_sites(point.transformer)[index]
    if name not in point.edited:
        return []
    return [constant(f"edit of {name}", point.state(index)[0, 0].double() - point.computed(index).double(), direction)]


def _before_sum(
    point: Point, index: int, step: Step, direction: Float[Tensor, "D"]
) -> tuple[Float[Tensor, "D"], list[Group]]:
    """Through a post-norm model's norm to the sum before it; the norm's shift and an edit of the sum, last first."""
    assert step.after is not None, "asked for only where there is one"
    name, after = step.parts[0].name, direction
    direction, shift = through(point, step.after, f"{name}.sum.scale", point.read(f"{name}.sum"), after)
    found = [] if shift is None else [constant(f"{name} norm bias", torch.as_tensor(step.after.bias), after)]
    if f"{name}.sum" in point.edited:
        computed = point.state(index)[0, 0].double()
        computed = computed + sum(point.read(f"{part.name}.update").double() for part in step.parts)
        found.append(constant(f"edit of {name}.sum", point.read(f"{name}.sum").double() - computed, direction))
    return direction, found


def _embeddings(spot: Spot, direction: Float[Tensor, "D"], normed: bool) -> Iterator[Group]:
    embed, point, after = spot.point.transformer.embed, spot.point, direction
    if embed.norm is not None:
        name = f"{embed.name}.sum"
        direction, _ = through(point, embed.norm, f"{name}.scale", point.read(name), after)
        normed = True
    parts = {"token": True, "position": embed.position is not None or embed.sinusoid, "type": embed.types is not None}
    values = {f"{embed.name}.{part}": point.read(f"{embed.name}.{part}") for part, there in parts.items() if there}
    for site, value in values.items():
        origin = Values(site, spot.position, value, direction, normed)
        yield Group((site,), origin.amounts(), origin)
    if f"{embed.name}.sum" in point.edited:
        computed = torch.stack([value.double() for value in values.values()]).sum(0)
        added = point.read(f"{embed.name}.sum").double() - computed
        yield constant(f"edit of {embed.name}.sum", added, direction)
    if embed.norm is not None and embed.norm.bias is not None:
        yield constant(f"{embed.name} norm bias", embed.norm.bias, after)


def _written(
    spot: Spot, part: Attention | FeedForward, direction: Float[Tensor, "D"], by: str, normed: bool
) -> Iterator[Group]:
    """What one sublayer wrote: whole, or split as `by` says, then its bias and what an edit put there."""
    point, name = spot.point, part.name
    if isinstance(part, Attention) and by in ("source", "head and source"):
        origin = _sources(spot, part, direction, by != "source", normed)
        crossing = isinstance(part, CrossAttention)
        tokens = spot.run.source if crossing and spot.run.source is not None else spot.run
        yield Group(origin.names(tokens.tokens(), "source " if crossing else ""), origin.amounts(), origin)
        bias, stages = part.out.bias, ("heads", "writes", "update")
    elif isinstance(part, Attention) and by in ("head", "neuron"):
        value = point.read(f"{name}.heads")
        origin = Values(f"{name}.heads", spot.position, value, direction, normed, "head", part.W_O)
        yield Group(tuple(f"{name} head {head}" for head in range(part.H)), origin.amounts(), origin)
        bias, stages = part.out.bias, ("writes", "update")
    elif isinstance(part, FeedForward) and by == "neuron":
        value = point.read(f"{name}.neurons")
        origin = Values(f"{name}.neurons", spot.position, value, direction, normed, "neuron", part.down.weight)
        yield Group(tuple(f"{name} neuron {neuron}" for neuron in range(len(value))), origin.amounts(), origin)
        bias, stages = part.down.bias, ("update",)
    else:
        origin = Values(f"{name}.update", spot.position, point.read(f"{name}.update"), direction, normed)
        yield Group((name,), origin.amounts(), origin)
        return
    if bias is not None:
        yield constant(f"{name} bias", bias, direction)
    if any(f"{name}.{stage}" in point.edited for stage in stages):
        whole = origin.whole() if bias is None else origin.whole() + bias.double()
        yield constant(f"edit of {name}", point.read(f"{name}.update").double() - whole, direction)


def _sources(spot: Spot, part: Attention, direction: Float[Tensor, "D"], by_head: bool, normed: bool) -> Sources:
    """The keys that one token has in sight, and those that an edit of the pattern has put there."""
    point, here = spot.point, spot.point.here
    where, run = here.place, spot.run
    if isinstance(part, CrossAttention) and here.memory is not None and run.source is not None:
        where, run = here.memory.place, run.source
    pattern = point.recording.read(f"{part.name}.pattern", here)[0, :, point.position]
    seen = visible(part.mask, column(here.place, point.position), where)[0, 0] | (pattern != 0).any(0)
    kept = [(key, at) for key, at in enumerate(run.columns()) if bool(seen[at])]
    keys, columns = tuple(key for key, _ in kept), tuple(at for _, at in kept)
    values = point.recording.read(f"{part.name}.value", here)[0, list(columns)]
    values = values.repeat_interleave(part.H // part.G, dim=1).double()
    pattern = pattern[:, list(columns)].double()
    return Sources(part, spot.position, pattern, values, keys, columns, direction, normed, by_head)

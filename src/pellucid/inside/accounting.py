"""Where a direction in the final stream comes from: everything that was written, through the frozen norms.

A state of a pre-norm model is the plain sum of what was written. In a post-norm model each sum went through a norm,
x' = gamma * centred(x + F(x)) * scale + beta, which is linear once its scale is held at its value in the run. So a
direction is taken backwards: through each norm to the sum before it, leaving the norm's shift as an entry.
"""

from collections.abc import Iterator
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.attention import Attention
from ..model.config import RMSNorm
from ..model.layers import Norm, activate
from ..model.transformer import FeedForward
from .reading import Point, state_sites

Entry: TypeAlias = tuple[str, float]


def through(
    norm: Norm, x: Float[Tensor, "D"], direction: Float[Tensor, "D"]
) -> tuple[Float[Tensor, "D"], float | None]:
    """A direction after a norm as one before it, its scale frozen at `x`, and what the norm's shift adds (if any)."""
    scale = norm.scale(x.double()[None, None])[0, 0]
    before = direction * norm.weight.double() * scale
    shift = None if norm.bias is None else float(norm.bias.double() @ direction)
    return before if isinstance(norm.record, RMSNorm) else before - before.mean(), shift


def entries(point: Point, direction: Float[Tensor, "D"], by: str) -> tuple[Entry, ...]:
    """What every part of the model wrote along a direction of the final stream, in the order of the data flow.

    What an edit of a state put there is an entry of its own, "edit of 3.stream"; one of an update belongs to its part.
    """
    found: list[Entry] = []
    for index, step in reversed(list(enumerate(point.transformer.steps))):
        found += _edited(point, index + 1, direction)
        if step.after is not None:
            name = f"{step.parts[0].name}.sum"
            direction, shift = through(step.after, point.read(name), direction)
            found += [] if shift is None else [(f"{step.parts[0].name} norm bias", shift)]
        for part in reversed(step.parts):
            found += reversed([(name, _along(write, direction)) for name, write in _writes(point, part, by)])
    found += _edited(point, 0, direction)
    return (*_embeddings(point, direction), *reversed(found))


def _edited(point: Point, index: int, direction: Float[Tensor, "D"]) -> list[Entry]:
    """What an edit of a state added to what was computed for it."""
    name = state_sites(point.transformer)[index]
    if name not in point.edited:
        return []
    return [(f"edit of {name}", _along(point.state(index)[0, 0].double() - point.computed(index).double(), direction))]


def head_direction(point: Point, direction: Float[Tensor, "D"]) -> Float[Tensor, "D"]:
    """A direction after BERT's prediction head as one of the final stream, the norm's scale and act(z)/z frozen."""
    head = point.transformer.head
    assert head is not None, "asked for only where there is one"
    z = point.read(f"{head.name}.dense").double()
    direction, _ = through(head.norm, point.read(f"{head.name}.active"), direction)
    ratio = torch.where(z == 0, 0.5, activate(head.activation, z) / z)
    return (direction * ratio) @ head.dense.weight.double()


def _embeddings(point: Point, direction: Float[Tensor, "D"]) -> Iterator[Entry]:
    embed, found = point.transformer.embed, []
    if embed.norm is not None:
        direction, shift = through(embed.norm, point.read(f"{embed.name}.sum"), direction)
        found += [] if shift is None else [(f"{embed.name} norm bias", shift)]
    parts = {"token": True, "position": embed.position is not None or embed.sinusoid, "type": embed.types is not None}
    for part, there in parts.items():
        if there:
            yield f"{embed.name}.{part}", _along(point.read(f"{embed.name}.{part}"), direction)
    yield from found


def _writes(point: Point, part: Attention | FeedForward, by: str) -> Iterator[tuple[str, Float[Tensor, "D"]]]:
    if by != "head" or not isinstance(part, Attention):
        yield part.name, point.read(f"{part.name}.update")
        return
    heads = point.read(f"{part.name}.heads")
    for head in range(part.H):
        yield f"{part.name} head {head}", heads[head].double() @ part.W_O[head].double()
    if part.out.bias is not None:
        yield f"{part.name} bias", part.out.bias
    if f"{part.name}.update" in point.edited or f"{part.name}.writes" in point.edited:
        whole = torch.einsum("hk,hkd->d", heads.double(), part.W_O.double())
        whole = whole if part.out.bias is None else whole + part.out.bias.double()
        yield f"edit of {part.name}", point.read(f"{part.name}.update").double() - whole


def _along(write: Float[Tensor, "D"], direction: Float[Tensor, "D"]) -> float:
    return float(write.double() @ direction)

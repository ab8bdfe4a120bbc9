"""What a part makes of the stream where each of its receivers reads a stream of its own.

Axes: N runs, R receivers of a part, T position, D model width, H query heads, G key-value heads, K head width.
"""

from jaxtyping import Float
from torch import Tensor, einsum

from ..model.attention import Attention, CrossAttention
from ..model.flow import Pass
from ..model.rotary import rotate
from ..model.transformer import FeedForward, Step

Part = Attention | FeedForward


def read(step: Step, part: Part, x: Float[Tensor, "N R T D"], here: Pass) -> Float[Tensor, "N R T D"]:
    """What every receiver is given: its stream through the norm, with that stream's own statistics."""
    flat = x.flatten(0, 1)
    return part.read(step.source(flat, here), here).unflatten(0, x.shape[:2])


def project(part: Attention, x: Float[Tensor, "N R T D"], here: Pass) -> list[Float[Tensor, "N T heads K"]]:
    """Queries (and of self-attention keys and values), each head's from its own receiver's normed stream."""
    crossing = isinstance(part, CrossAttention)
    bias = part.query.bias if crossing else part.qkv.bias
    weights = [part.W_Q] if crossing else [part.W_Q, part.W_K, part.W_V]
    sizes = [len(weight) for weight in weights]
    biases = [None] * len(sizes) if bias is None else bias.unflatten(0, (-1, part.K)).split(sizes)
    made = []
    for name, weight, shift, own in zip(("query", "key", "value"), weights, biases, x.split(sizes, 1), strict=False):
        value = einsum("nhtd,hdk->nthk", own, weight)
        value = value if shift is None else value + shift
        if here.rotation is not None and name != "value" and not crossing:
            value = rotate(value, *here.rotation)
        made.append(here.look(f"{part.name}.{name}", value))
    return made


def attend(part: Attention, x: Float[Tensor, "N R T D"], here: Pass) -> Float[Tensor, "N T D"]:
    """A layer of heads whose queries, keys and values each read their own normed stream."""
    made = project(part, x, here)
    if not isinstance(part, CrossAttention):
        query, key, value = made
        return part.mix(query, key, value, here.place, here)
    assert here.memory is not None, "a decoder without its encoder's memory is refused before it runs"
    key, value = here.memory.keys_values(part.layer, part.keys_values)
    key, value = here.look(f"{part.name}.key", key), here.look(f"{part.name}.value", value)
    return part.mix(made[0], key, value, here.memory.place, here)

"""Pure functions from logits to logits: a forbidden token is -inf. The last axis is the vocabulary V."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def forbid(logits: Float[Tensor, "*B V"], ids: Int[Tensor, "n"]) -> Float[Tensor, "*B V"]:
    """The given ids can no longer be chosen."""
    return logits.index_fill(-1, ids, -torch.inf)


def repetition(logits: Float[Tensor, "*B V"], seen: Bool[Tensor, "*B V"], r: float) -> Float[Tensor, "*B V"]:
    """Seen tokens: positive logits / r, negative ones * r (Keskar et al. 2019)."""
    return torch.where(seen, torch.where(logits > 0, logits / r, logits * r), logits)


def presence(logits: Float[Tensor, "*B V"], counts: Float[Tensor, "*B V"], a: float) -> Float[Tensor, "*B V"]:
    """Minus `a` for every token that was generated at least once."""
    return logits - a * (counts > 0)


def frequency(logits: Float[Tensor, "*B V"], counts: Float[Tensor, "*B V"], b: float) -> Float[Tensor, "*B V"]:
    """Minus `b` for every time the token was generated."""
    return logits - b * counts


def temperature(logits: Float[Tensor, "*B V"], t: float) -> Float[Tensor, "*B V"]:
    """(logits - max) / t, which has the same softmax as logits / t and cannot overflow, however small t is."""
    least = torch.finfo(logits.dtype).tiny
    return (logits - logits.amax(-1, keepdim=True)) / max(t, least)


def top_k(logits: Float[Tensor, "*B V"], k: int) -> Float[Tensor, "*B V"]:
    """Only the k highest logits, and those equal to the k-th (Fan et al. 2018); k above V keeps all."""
    last = logits.topk(min(k, logits.shape[-1])).values[..., -1:]
    return logits.masked_fill(logits < last, -torch.inf)


def top_p(logits: Float[Tensor, "*B V"], p: float) -> Float[Tensor, "*B V"]:
    """Only the fewest most probable tokens that hold at least p together, the first always (Holtzman et al. 2020)."""
    if p >= 1.0:
        return logits
    ids, before = _leading(logits.softmax(-1), p)
    dropped = before >= p
    dropped[..., 0] = False
    kept = logits.gather(-1, ids).masked_fill(dropped, -torch.inf)
    return torch.full_like(logits, -torch.inf).scatter(-1, ids, kept)


def min_p(logits: Float[Tensor, "*B V"], p: float) -> Float[Tensor, "*B V"]:
    """Only tokens at least p times as probable as the most probable one (Nguyen et al. 2024)."""
    probabilities = logits.softmax(-1)
    return logits.masked_fill(probabilities < p * probabilities.amax(-1, keepdim=True), -torch.inf)


def draw(logits: Float[Tensor, "B V"], uniform: Float[Tensor, "B n"]) -> Int[Tensor, "B n"]:
    """n tokens a row from softmax(logits): where the running sum of probabilities passes a number in [0, 1)."""
    # 64 bits, so that adding up a large vocabulary rounds nothing away; Apple's GPUs have only 32.
    exact = torch.float32 if logits.device.type == "mps" else torch.float64
    sums = logits.softmax(-1).to(exact).cumsum(-1)
    # Two roundings short of the whole, so that the product never reaches the last sum.
    share = uniform.to(logits.device, exact) * (1 - 2 * torch.finfo(exact).eps)
    return torch.searchsorted(sums, share * sums[:, -1:], right=True)


def _leading(probabilities: Tensor, p: float) -> tuple[Int[Tensor, "*B n"], Float[Tensor, "*B n"]]:
    """The most probable ids in order, enough to hold p, and the mass before each; flat distributions need them all."""
    V, width = probabilities.shape[-1], 256
    while True:
        best, ids = probabilities.topk(min(width, V))
        sums = best.cumsum(-1)
        if width >= V or bool((sums[..., -1] >= p).all()):
            return ids, sums - best
        width *= 8

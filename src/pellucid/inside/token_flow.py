"""How much of one token ends up in another: through a head's values, through a layer, through all layers."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.config import PostNorm
from .circuits import attention_of, exact
from .head_scores import patterns
from .trace import Trace

EPSILON = 1e-5  # the least contribution of a part, before they are divided by their sum


@torch.no_grad()
def value_norms(trace: Trace, layer: int) -> Float[Tensor, "B H T S"]:
    """|A[q, k] v_k W_O_h|: what a head moves, beside how much it attends (Kobayashi et al. 2020). Float64."""
    sizes = _moved(trace, layer).norm(dim=-1)
    return trace[f"{_site(trace, layer)}.pattern"].double() * sizes.transpose(1, 2)[:, :, None, :]


@torch.no_grad()
def rollout(trace: Trace) -> Float[Tensor, "B T S"]:
    """Attention rollout (Abnar & Zuidema 2020): the product over layers of (mean over heads of A + 1) / 2.

    How much of each first state's position is in each last one's if heads only averaged; rows sum to 1, and a row of
    padding stays with itself. Float64.
    """
    rolled = None
    for pattern, seen in patterns(trace):
        itself = torch.eye(pattern.shape[-1], dtype=pattern.dtype, device=pattern.device)
        mixed = torch.where(seen.any(-1, keepdim=True), (pattern.mean(1) + itself) / 2, itself)
        rolled = mixed if rolled is None else mixed @ rolled
    assert rolled is not None, "a model has at least one layer"
    return rolled


@torch.no_grad()
def contributions(trace: Trace, layer: int) -> Float[Tensor, "B T S"]:
    """What each token contributes to another through a layer's attention and around it; rows sum to 1. Float64.

    The state y after the sublayer is the sum of what the heads move from each key, and the state before it with the
    output bias, which counts to the token itself. A part c contributes max(EPSILON, |y| - |y - c|) in absolute sums,
    over the sum of these (Ferrando & Voita 2024). A parallel block's feed-forward layer is left out; rows of padding
    are 0. Raises ValueError in a post-norm model, where a norm stands between y and the next state.
    """
    if isinstance(trace.transformer.config.block, PostNorm):
        raise ValueError("in a post-norm model the state after attention is no sum of its parts: a norm follows")
    attention, site = attention_of(trace.transformer, layer), _site(trace, layer)
    state = trace[site.removesuffix("attention") + "stream"].double()
    own = state if attention.out.bias is None else state + exact(attention.out.bias).double()
    pattern, moved = trace[f"{site}.pattern"].double(), _moved(trace, layer)
    found = torch.zeros_like(pattern[:, 0])
    for row, q in pattern.sum((1, 3)).nonzero().tolist():
        parts = torch.einsum("hs,shd->sd", pattern[row, :, q], moved[row])
        parts[q] += own[row, q]
        y = parts.sum(0)
        there = pattern[row, :, q].any(0)  # keys out of sight have no part
        near = (y.abs().sum() - (y - parts).abs().sum(-1)).clamp(min=EPSILON) * there
        found[row, q] = near / near.sum()
    return found


def _moved(trace: Trace, layer: int) -> Float[Tensor, "B S H D"]:
    """v_k W_O of every head."""
    attention = attention_of(trace.transformer, layer)
    value = trace[f"{_site(trace, layer)}.value"].double().repeat_interleave(attention.H // attention.G, dim=2)
    return torch.einsum("bshk,hkd->bshd", value, exact(attention.W_O).double())


def _site(trace: Trace, layer: int) -> str:
    return attention_of(trace.transformer, layer).name

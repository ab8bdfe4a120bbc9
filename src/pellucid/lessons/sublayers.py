"""Attention, the feed-forward layer and the unembedding of a model, each line by its formula beside the model's own.

Axes: B batch, T position, S key position, H query heads, G key-value heads, D model width, K head width.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..inside.circuits import attention_of
from ..inside.neuron_weights import ffn_of
from ..inside.trace import Trace
from ..model.activation import activate
from ..model.attention import Attention
from ..model.config import Bidirectional, MaskedLanguage, Window
from ..model.layers import Linear
from ..model.rotary import rotate
from ..views import Table
from .found import Found
from .small import site

NAMES = ("value", "formula", "shape", "largest difference")


@torch.no_grad()
def attention_on(trace: Trace, layer: int = 0, row: int = 0) -> Found:
    """Q = X W_Q, K, V; S = Q K^T / sqrt(d_k) + mask; A = softmax(S) by rows; A V; concat W_O: every line of a layer.

    In float64, of one row without its padding; rotary queries and keys are rotated before they are compared.
    """
    part, name, at = attention_of(trace.transformer, layer), site(trace, f"{layer}.attention"), trace.columns(row)
    x = trace[f"{name}.input"][row, at].double()
    query, key, value = _projected(part, x)
    rotation, turned = trace.present().rotation, ""
    if rotation is not None:
        cos, sin = (each[row, at].double() if each.shape[0] > 1 else each[0, at].double() for each in rotation)
        query, key = (rotate(each[None], cos[None], sin[None])[0] for each in (query, key))
        turned = ", rotated"
    repeats = part.H // part.G
    scores = torch.einsum("thk,shk->hts", query, key.repeat_interleave(repeats, dim=1)) * part.scale
    scores = scores.masked_fill(~_seen(trace, layer, len(at)), -torch.inf)
    pattern = scores.softmax(-1)
    heads = torch.einsum("hts,shk->thk", pattern, value.repeat_interleave(repeats, dim=1))
    update = _linear(part.out, heads.flatten(1))
    scale = "Q K^T / sqrt(d_k)" if part.scale == part.K**-0.5 else f"Q K^T x {part.scale:g}"
    made = (
        ("query", f"X W_Q{turned}", query, trace[f"{name}.query"][row, at]),
        ("key", f"X W_K{turned}", key, trace[f"{name}.key"][row, at]),
        ("value", "X W_V", value, trace[f"{name}.value"][row, at]),
        ("scores", f"{scale} + mask", scores, trace[f"{name}.scores"][row][:, at][:, :, at]),
        ("pattern", "softmax of each row", pattern, trace[f"{name}.pattern"][row][:, at][:, :, at]),
        ("heads", "A V", heads, trace[f"{name}.heads"][row, at]),
        ("update", "concat(heads) W_O", update, trace[f"{name}.update"][row, at]),
    )
    rows = tuple((f"{name}.{what}", formula, _shape(mine), _apart(mine, own)) for what, formula, mine, own in made)
    note = f"{part.H} heads of {part.K} over {part.G} of keys and values; mask: 0 where a key is seen, -inf elsewhere."
    return Found((Table("attention, line by line", NAMES, rows, note),))


def _projected(part: Attention, x: Float[Tensor, "T D"]) -> tuple[Tensor, Tensor, Tensor]:
    """X W of every head, with its bias: T x heads x K."""
    bias = part.qkv.bias
    biases = (0.0, 0.0, 0.0) if bias is None else bias.double().view(-1, part.K).split((part.H, part.G, part.G))
    found = (
        torch.einsum("td,hdk->thk", x, each.double()) + own
        for each, own in zip((part.W_Q, part.W_K, part.W_V), biases, strict=True)
    )
    query, key, value = found
    return query, key, value


def _seen(trace: Trace, layer: int, length: int) -> Bool[Tensor, "T S"]:
    """Which keys each query may see: those up to itself, in a window the last few, in a bidirectional layer all."""
    mask, t = trace.transformer.config.mask(layer), torch.arange(length, device=trace.ids.device)
    if isinstance(mask, Bidirectional):
        return torch.ones(length, length, dtype=torch.bool, device=t.device)
    causal = t[None] <= t[:, None]
    return causal & (t[:, None] - t[None] < mask.width) if isinstance(mask, Window) else causal


@torch.no_grad()
def feed_forward_on(trace: Trace, layer: int = 0, row: int = 0) -> Found:
    """act(x W_up) W_down, or (x W_up * SiLU(x W_gate)) W_down: every line of a layer, in float64."""
    part, name, at = ffn_of(trace.transformer, layer), site(trace, f"{layer}.ffn"), trace.columns(row)
    x = trace[f"{name}.input"][row, at].double()
    up, kind = _linear(part.up, x), type(part.activation).__name__
    made = [("up", "x W_up", up)]
    if part.gate is None:
        made.append(("neurons", f"{kind}(x W_up)", activate(part.activation, up)))
    else:
        gate = _linear(part.gate, x)
        made = [("gate", "x W_gate", gate), *made, ("neurons", "x W_up * SiLU(x W_gate)", up * gate * gate.sigmoid())]
    made.append(("update", "neurons W_down", _linear(part.down, made[-1][2])))
    rows = tuple(
        (f"{name}.{what}", formula, _shape(mine), _apart(mine, trace[f"{name}.{what}"][row, at]))
        for what, formula, mine in made
    )
    return Found((Table("feed-forward layer, line by line", NAMES, rows),))


@torch.no_grad()
def unembedding_on(trace: Trace, row: int = 0) -> Found:
    """The final norm, then E^T where it is tied to the embedding, or a matrix of its own: T x V logits.

    Raises ValueError for a model whose head is another one.
    """
    model, at = trace.transformer, trace.columns(row)
    if model.unembed is None or isinstance(model.config.head, MaskedLanguage):
        raise ValueError("this model's logits are not made of its final stream by a norm and a matrix alone")
    normed = trace.states[-1] if model.final_norm is None else trace[site(trace, "final.normed")]
    x = normed[row, at].double()
    logits = x @ model.W_U.double().T
    if model.unembed.bias is not None:
        logits = logits + model.unembed.bias.double()
    logits = logits * model.config.logit_scale
    own = trace.logits_at(row, at)
    tied = model.unembed.weight is None
    formula = ("norm(x) " if model.final_norm is not None else "x ") + ("E^T" if tied else "W_U")
    rows = ((site(trace, "logits"), formula, _shape(logits), _apart(logits, own)),)
    note = "Tied: the matrix is the token embedding's." if tied else "Untied: a matrix of its own."
    return Found((Table("the unembedding", NAMES, rows, note),))


def _linear(layer: Linear, x: Float[Tensor, "T D"]) -> Float[Tensor, "T F"]:
    found = x @ layer.weight.double().T
    return found if layer.bias is None else found + layer.bias.double()


def _shape(value: Tensor) -> str:
    return " x ".join(map(str, value.shape))


def _apart(mine: Tensor, own: Tensor) -> float:
    """The largest difference; infinite where one is hidden and the other is not."""
    own = own.double()
    if not torch.equal(mine == -torch.inf, own == -torch.inf):
        return float("inf")
    return float((mine - own).nan_to_num(0.0).abs().max())

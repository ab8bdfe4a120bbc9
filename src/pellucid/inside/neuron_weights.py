"""What a neuron does by its weights alone: what it reads, how strongly it writes, and which tokens it then promotes.

A feed-forward layer is a sum of neurons (Geva et al. 2021, 2022): neuron i reads the stream along column i of W_up (and
of W_gate in a gated model), and adds its value times row i of W_down. Its direct effect on a token's logit is
W_down[i] . W_U[token] for each unit of its value, taken together with the norms that the write still passes: their
gain, and for LayerNorm their centring. Their scales, positive numbers that depend on the text, are left out.
"""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.config import LayerNorm
from ..model.layers import Norm
from ..model.transformer import Block, FeedForward, Transformer
from ..text import Tokenizer
from ..views.table import Table
from .circuits import embedding, exact, folded, unembedding, unembedding_rows


def writes(transformer: Transformer, layer: int) -> Float[Tensor, "F D"]:
    """W_down, a row a neuron: what each adds to the stream for each unit of its value."""
    return exact(ffn_of(transformer, layer).down.weight).T


def write_norm(transformer: Transformer, layer: int, neuron: int) -> float:
    """The Euclidean norm of what a neuron adds for each unit of its value."""
    return float(_write(transformer, layer, neuron).norm())


def promoted(
    transformer: Transformer, layer: int, neuron: int, k: int = 10, tokenizer: Tokenizer | None = None
) -> Table:
    """The k tokens whose logits a neuron raises most, and the k that it lowers most, for each unit of its value."""
    write = _write(transformer, layer, neuron)
    effect = direct_effects(transformer, layer, [neuron])[0]
    _check_k(k, len(effect))
    high, low = effect.topk(k), effect.topk(k, largest=False)
    up, down = (_labels(tokenizer, each.indices) for each in (high, low))
    rows = tuple(zip(range(1, k + 1), up, high.values.tolist(), down, low.values.tolist(), strict=True))
    title = f"neuron {layer}.{neuron}, which writes with norm {float(write.norm()):.4f}"
    return Table(title, ("rank", "promotes", "by", "suppresses", "by "), rows, "Logits for each unit of its value.")


def direct_effects(transformer: Transformer, layer: int, neurons: Sequence[int]) -> Float[Tensor, "neurons V"]:
    """What some neurons do to every logit, for each unit of their values."""
    rows = unembedding_rows(transformer)
    written = torch.stack([_write(transformer, layer, neuron) for neuron in neurons])
    for norm in (*_norms_behind(transformer, layer), transformer.final_norm):
        if norm is not None:
            centred = written - written.mean(1, keepdim=True) if isinstance(norm.record, LayerNorm) else written
            written = centred * exact(norm.weight)
    return (rows @ written.T).T  # in this order it takes half the time


def promoting(
    transformer: Transformer,
    token: str | int,
    k: int = 20,
    minus: str | int | None = None,
    tokenizer: Tokenizer | None = None,
) -> Table:
    """The k neurons of all layers that raise a token's logit most (over another's, `minus`) for each unit of value."""
    ids = [id_of(transformer, tokenizer, each) for each in (token, minus) if each is not None]
    found = []
    for layer in range(len(transformer.blocks)):
        rows = _direct(transformer, layer, torch.tensor(ids, device=transformer.W_U.device))
        direction = rows[0] - rows[1] if len(ids) == 2 else rows[0]
        write = writes(transformer, layer)
        norms, effect = write.norm(dim=1), write @ direction
        found.append(torch.stack((effect, norms, effect / (norms * direction.norm()).clamp(min=1e-30))))
    effects, norms, cosines = torch.stack(found, 1).flatten(1)
    _check_k(k, len(effects))
    order, width = effects.topk(k).indices.tolist(), transformer.config.d_ff
    rows = tuple((*divmod(at, width), float(effects[at]), float(norms[at]), float(cosines[at])) for at in order)
    names = " over ".join(_labels(tokenizer, torch.tensor(ids)))
    return Table(f"neurons that promote {names}", ("layer", "neuron", "by", "write norm", "cosine"), rows)


def reads(transformer: Transformer, layer: int, neuron: int, k: int = 10, tokenizer: Tokenizer | None = None) -> Table:
    """The k tokens whose embeddings fit best what a neuron reads: by W_up, and in a gated model by W_gate too.

    The reading norm's gain and centring are taken in, its scale and shift are not.
    """
    _write(transformer, layer, neuron)
    ffn, words, cells = ffn_of(transformer, layer), embedding(transformer), []
    norm = _block(transformer, layer).norm or (ffn.norm if ffn.reads_normed else None)
    _check_k(k, len(words))
    for matrix in (ffn.up,) if ffn.gate is None else (ffn.gate, ffn.up):
        key = folded(exact(matrix.weight[neuron])[None, :, None], norm)[0, :, 0]
        fit = (words @ key).topk(k)
        cells += [_labels(tokenizer, fit.indices), fit.values.tolist()]
    columns = ("read by up", "fit") if ffn.gate is None else ("read by gate", "fit", "read by up", "fit ")
    return Table(f"neuron {layer}.{neuron} reads", ("rank", *columns), tuple(zip(range(1, k + 1), *cells, strict=True)))


def id_of(transformer: Transformer, tokenizer: Tokenizer | None, token: str | int) -> int:
    """The id of a token that is given as its text or its id. Raises ValueError for one that there is not."""
    if isinstance(token, str):
        if tokenizer is None:
            raise ValueError(f"this model has no tokenizer: give the id instead of {token!r}")
        return tokenizer.id_of(token)
    if not 0 <= token < transformer.config.vocab_size:
        raise ValueError(f"token ids lie in 0..{transformer.config.vocab_size - 1}, got {token}")
    return token


def ffn_of(transformer: Transformer, layer: int) -> FeedForward:
    """The feed-forward part of a layer. Raises ValueError for a layer that there is not."""
    return _block(transformer, layer).ffn


def _block(transformer: Transformer, layer: int) -> Block:
    if not 0 <= layer < len(transformer.blocks):
        raise ValueError(f"the model has layers 0..{len(transformer.blocks) - 1}, got {layer}")
    return cast(Block, transformer.blocks[layer])


def _write(transformer: Transformer, layer: int, neuron: int) -> Float[Tensor, "D"]:
    matrix = ffn_of(transformer, layer).down.weight
    if not 0 <= neuron < matrix.shape[1]:
        raise ValueError(f"layer {layer} has neurons 0..{matrix.shape[1] - 1}, got {neuron}")
    return exact(matrix[:, neuron])


def _direct(transformer: Transformer, layer: int, ids: Tensor) -> Float[Tensor, "tokens D"]:
    """What some logits read of a layer's feed-forward update: the unembedding, and the norms on the way to it."""
    rows = unembedding(transformer, ids)
    for norm in reversed(_norms_behind(transformer, layer)):
        rows = folded(rows.T[None], norm)[0].T
    return rows


def _norms_behind(transformer: Transformer, layer: int) -> list[Norm]:
    """The norms that a layer's feed-forward update passes in the stack: a post-norm model's, from its own on."""
    ffn, steps = ffn_of(transformer, layer), transformer.steps
    first = next(at for at, step in enumerate(steps) if ffn in step.parts)
    return [step.after for step in steps[first:] if step.after is not None]


def _labels(tokenizer: Tokenizer | None, ids: Tensor) -> list[str]:
    return [str(each) for each in ids.tolist()] if tokenizer is None else tokenizer.labels(ids.tolist())


def _check_k(k: int, most: int) -> None:
    if not 1 <= k <= most:
        raise ValueError(f"k must lie in 1..{most}, got {k}")

"""What a head does by its weights alone: where it looks (QK) and what it then moves (OV), as factored matrices.

Row convention: x W (Elhage et al. 2021 write columns). For the analysis alone, and without touching the model, what
reads the stream is taken together with the norm that it reads through: its gain, and for LayerNorm its centring. The
norm's scale, its shift, and the biases of queries, keys and values are not in these matrices. Circuits are those of
self-attention; a model's encoder is a transformer of its own (`transformer.encoder`).
"""

from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.attention import Attention
from ..model.config import LayerNorm
from ..model.layers import Norm
from ..model.rotary import Rotary, rotate, table
from ..model.transformer import Block, Transformer
from .factored import Factored


def ov(transformer: Transformer, layer: int, head: int) -> Factored:
    """W_V W_O [D x D]: what the head writes of what stands at the key. Grouped queries: of its group's values."""
    check_head(transformer, layer, head)
    return Factored(readers(transformer, layer, "value")[head], exact(attention_of(transformer, layer).W_O[head]))


def qk(transformer: Transformer, layer: int, head: int, offset: int = 0, length: int | None = None) -> Factored:
    """W_Q W_K^T [D x D]: how well a key (column) fits a query (row), `offset` positions after it, before any scale.

    Where positions are rotary the fit depends on q - k = offset: W_Q R(offset) W_K^T. `length` is that of the text,
    for scalings whose frequencies depend on it (default: as long as the offset needs).
    """
    check_head(transformer, layer, head)
    length = length or abs(offset) + 1
    query = readers(transformer, layer, "query", offset, length)[head]
    return Factored(query, readers(transformer, layer, "key", 0, length)[head].T)


def full_ov(transformer: Transformer, layer: int, head: int) -> Factored:
    """W_E W_OV W_U [V x V]: how much attending to a token (row) raises the logit of another (column), directly."""
    inner = ov(transformer, layer, head)
    return Factored(embedding(transformer) @ inner.left, inner.right @ unembedding(transformer).T)


def full_qk(transformer: Transformer, layer: int, head: int, offset: int = 0, length: int | None = None) -> Factored:
    """W_E W_QK W_E^T [V x V]: how well a key token (column) fits a query token (row) that stands `offset` after it."""
    inner, words = qk(transformer, layer, head, offset, length), embedding(transformer)
    return Factored(words @ inner.left, inner.right @ words.T)


def readers(
    transformer: Transformer,
    layer: int,
    part: Literal["query", "key", "value"],
    offset: int = 0,
    length: int | None = None,
) -> Float[Tensor, "H D K"]:
    """W_Q, W_K or W_V for each query head with the reading norm folded in; queries and keys turned by `offset`."""
    attention = attention_of(transformer, layer)
    matrices = exact({"query": attention.W_Q, "key": attention.W_K, "value": attention.W_V}[part])
    matrices = folded(matrices, reading_norm(transformer, layer))
    rotary = transformer.config.positions
    if part != "value" and isinstance(rotary, Rotary):
        place = torch.tensor([[offset]], device=matrices.device)
        turn = table(rotary, attention.K, place, length or abs(offset) + 1, matrices.dtype)
        matrices = rotate(matrices.transpose(0, 1)[:, None], *turn)[:, 0].transpose(0, 1)
    return matrices if part == "query" else matrices.repeat_interleave(attention.H // attention.G, dim=0)


def folded(matrices: Float[Tensor, "heads D K"], norm: Norm | None) -> Float[Tensor, "heads D K"]:
    """What reads the stream together with the norm before it: (x - mean(x)) * gamma W as one matrix."""
    if norm is None:
        return matrices
    matrices = matrices * exact(norm.weight).to(matrices.dtype)[:, None]
    return matrices - matrices.mean(1, keepdim=True) if isinstance(norm.record, LayerNorm) else matrices


def embedding(transformer: Transformer) -> Float[Tensor, "V D"]:
    """W_E as it enters the stream, without positions."""
    scale = transformer.config.embedding_scale
    return exact(transformer.embed.words) if scale == 1.0 else exact(transformer.embed.words) * scale


def unembedding(transformer: Transformer, ids: Tensor | None = None) -> Float[Tensor, "tokens D"]:
    """W_U, a row a token (all, or those of `ids`), with the final norm folded in.

    Raises ValueError where no matrix stands between the final stream and the logits.
    """
    rows, norm = unembedding_rows(transformer, ids), transformer.final_norm
    return rows if norm is None else folded(rows.T[None], norm)[0].T


def unembedding_rows(transformer: Transformer, ids: Tensor | None = None) -> Float[Tensor, "tokens D"]:
    """W_U as `unembedding` has it, for what is read behind the final norm."""
    if transformer.unembed is None or transformer.head is not None:
        raise ValueError("this needs logits that are linear in the final stream: the model has no plain unembedding")
    rows, scale = exact(transformer.W_U if ids is None else transformer.W_U[ids]), transformer.config.logit_scale
    return rows if scale == 1.0 else rows * scale


def exact(weight: Tensor) -> Tensor:
    """A weight in at least fp32, without its gradient."""
    return weight.detach().to(torch.promote_types(weight.dtype, torch.float32))


def reading_norm(transformer: Transformer, layer: int) -> Norm | None:
    """The norm that a layer's heads read the stream through; None in a post-norm model, where they read it as it is."""
    block = _block(transformer, layer)
    if block.norm is not None:
        return block.norm
    return block.attention.norm if block.attention.reads_normed else None


def attention_of(transformer: Transformer, layer: int) -> Attention:
    """The self-attention of a layer."""
    return _block(transformer, layer).attention


def check_head(transformer: Transformer, layer: int, head: int) -> None:
    """Refuse a layer or a head that the model does not have."""
    if not 0 <= head < attention_of(transformer, layer).H:
        raise ValueError(f"the model has heads 0..{transformer.config.n_heads - 1}, got {head}")


def _block(transformer: Transformer, layer: int) -> Block:
    if not 0 <= layer < len(transformer.blocks):
        raise ValueError(f"the model has layers 0..{len(transformer.blocks) - 1}, got {layer}")
    return cast(Block, transformer.blocks[layer])

"""What one head moves and what it looks for, by its weights alone: the strongest pairs of tokens."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...model.rotary import Rotary
from ...model.transformer import Transformer
from ...text import Tokenizer
from ...views.table import Table
from ..circuits import attention_of, check_head, embedding, ov, qk, reading_norm, unembedding
from ..factored import Factored

_ALONE = "Each token by its embedding alone"
_MOVES = ("what it moves (OV)", ("attending to", "id", "raises", "raised id", "logit"))
_LOOKS = ("what it looks for (QK)", ("query", "id", "key", "key id", "score"))
_LEFT = "Left out: biases, shifts, and all that other parts of the model wrote"


@torch.no_grad()
def head_reading(
    transformer: Transformer, tokenizer: Tokenizer | None, layer: int, head: int, k: int = 12, offset: int = 0
) -> dict[str, Any]:
    """The k strongest pairs of a head's circuits over the whole vocabulary, as tables.

    `ov`: attending to a token raises the logit of another, W_E W_OV W_U; None, with a `note`, where logits are not
    linear in the stream. `qk`: a query token's score with a key token that stands `offset` before it, W_E W_QK W_E^T.
    Each token is read as the norm before the layer makes it, at its own scale. What is the same for all columns is
    taken off, since no probability depends on it. Raises ValueError for a head, a k or an offset that there is not.
    """
    check_head(transformer, layer, head)
    config = transformer.config
    most = min(1000, config.vocab_size)
    if not 1 <= k <= most:
        raise ValueError(f"k must lie in 1..{most}, got {k}")
    if not 0 <= offset < config.context_length:
        raise ValueError(f"offset must lie in 0..{config.context_length - 1} (tokens back), got {offset}")
    turned = isinstance(config.positions, Rotary)
    read = _ALONE if reading_norm(transformer, layer) is None else f"{_ALONE}, as the layer's norm would scale it"
    about = f"{read}. {_LEFT}{'' if turned else ', positions'}."
    words, note = tokens_read(transformer, layer), why_no_logits(transformer)
    moves = None if note else _table(_MOVES, _moves(transformer, words, (layer, head)).top(k), tokenizer)
    looks = _table(_LOOKS, _looks(transformer, words, (layer, head), offset).top(k), tokenizer)
    of_logits = "Logits above the mean of the vocabulary, the final norm's gain folded in and its scale left out."
    return {
        "layer": layer,
        "head": head,
        "k": k,
        "offset": offset,
        "turned": turned,
        "note": note,
        "ov": None if moves is None else moves | {"note": f"{of_logits} {about}"},
        "qk": looks | {"note": f"Scores before the softmax, above the mean of all keys. {about}"},
    }


def _moves(transformer: Transformer, words: Float[Tensor, "V D"], at: tuple[int, int]) -> Factored:
    """W_E W_OV W_U: what attending to each token raises."""
    circuit = ov(transformer, *at)
    return Factored(words @ circuit.left, centred(circuit.right @ unembedding(transformer).T))


def _looks(transformer: Transformer, words: Float[Tensor, "V D"], at: tuple[int, int], offset: int) -> Factored:
    """W_E W_QK W_E^T: each query token's scores with all key tokens."""
    circuit = qk(transformer, *at, offset)
    scale = attention_of(transformer, at[0]).scale
    return Factored(words @ circuit.left, centred(circuit.right @ words.T) * scale)


def why_no_logits(transformer: Transformer) -> str:
    """Why no token is raised by what is written to the stream; nothing where tokens are."""
    if transformer.unembed is None:
        return "This model makes no logits: what a head writes raises no tokens."
    if transformer.head is not None:
        return "An activation stands between the stream and the logits: what a head writes raises no tokens by itself."
    return ""


def tokens_read(transformer: Transformer, layer: int, ids: Int[Tensor, "N"] | None = None) -> Float[Tensor, "N D"]:
    """The embeddings of all tokens, or of some, over the scale of the norm that a layer's heads read through.

    Its gain (and centring) is in the circuits. A post-norm model's heads read the stream as it is.
    """
    words, norm = embedding(transformer), reading_norm(transformer, layer)
    words = words if ids is None else words[ids]
    return words if norm is None else words * norm.scale(words[None])[0, :, None]


def raised(
    transformer: Transformer, writes: Float[Tensor, "N D"], k: int, tokenizer: Tokenizer | None
) -> list[list[list[Any]]]:
    """For each write the k tokens whose logits it raises most above the mean, as [label, amount, id].

    The final norm's gain is folded in, its scale is not.
    """
    words = unembedding(transformer)
    return strongest(writes.to(words) @ centred(words.T), k, tokenizer)


def strongest(values: Float[Tensor, "N V"], k: int, tokenizer: Tokenizer | None) -> list[list[list[Any]]]:
    """The k largest of each row, as [label, value, id]."""
    found = values.topk(min(k, values.shape[1]))
    pairs = zip(found.values.tolist(), found.indices.tolist(), strict=True)
    return [
        [[label, amount, id] for label, amount, id in zip(labelled(ids, tokenizer), amounts, ids, strict=True)]
        for amounts, ids in pairs
    ]


def centred(columns: Float[Tensor, "r V"]) -> Float[Tensor, "r V"]:
    """The columns less their mean: every entry of a product with them is then above the mean of its row."""
    return columns - columns.mean(1, keepdim=True)


def labelled(ids: Sequence[int], tokenizer: Tokenizer | None) -> list[str]:
    """Printable names of tokens."""
    return [str(id) for id in ids] if tokenizer is None else tokenizer.labels(ids)


def _table(
    named: tuple[str, tuple[str, ...]], pairs: Sequence[tuple[int, int, float]], tokenizer: Tokenizer | None
) -> dict[str, Any]:
    rows, columns = [row for row, _, _ in pairs], [column for _, column, _ in pairs]
    cells = zip(labelled(rows, tokenizer), rows, labelled(columns, tokenizer), columns, pairs, strict=True)
    return Table(*named, tuple((*cell[:4], cell[4][2]) for cell in cells)).to_json()

"""Filling masked tokens with a bidirectional model (Devlin et al. 2019)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..model.flow import Looks
from ..model.transformer import Transformer
from ..text import Tokenizer
from .prompts import checked


@dataclass(frozen=True)
class Filling:
    """A token for one masked position. `text` is the whole input with it in place, other masks as they were."""

    position: int
    id: int
    token: str
    probability: float
    text: str


@torch.no_grad()
def fill(
    transformer: Transformer, tokenizer: Tokenizer, text: str, k: int = 5, looks: Looks | None = None
) -> list[list[Filling]]:
    """The k most probable tokens for each mask in a text, most probable first; masks in the order of the text.

    Masks are written as the tokenizer writes them ([MASK] in BERT), and each is filled with the others left masked. The
    model runs without dropout. Raises ValueError for a model without a head for it, a text without a mask, or another
    number of tokens than the vocabulary has.
    """
    config = transformer.config
    if config.head is None or config.causal:
        what = "it reads text in one direction alone" if config.causal else "it has no prediction head"
        raise ValueError(f"this model cannot fill masks: {what}")
    if tokenizer.mask_id is None:
        raise ValueError("this model's tokenizer has no mask token")
    if not 1 <= k <= config.vocab_size:
        raise ValueError(f"k must lie in 1..{config.vocab_size} (the vocabulary), got {k}")
    ids = checked(tokenizer.encode(text, special=True), 0, config)
    masked = [i for i, token in enumerate(ids) if token == tokenizer.mask_id]
    if not masked:
        written = tokenizer.decode([tokenizer.mask_id])
        raise ValueError(f"there is no mask in the text: write {written} where a token is to be found")
    training = transformer.training
    try:
        logits = transformer.eval()(torch.tensor([ids], device=transformer.W_U.device), looks=looks)[0, masked]
    finally:
        transformer.train(training)
    chances = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
    return [_fillings(tokenizer, ids, at, row.topk(k)) for at, row in zip(masked, chances, strict=True)]


def _fillings(tokenizer: Tokenizer, ids: Sequence[int], at: int, best: torch.return_types.topk) -> list[Filling]:
    found = []
    for token, probability in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        filled = [*ids[:at], token, *ids[at + 1 :]]
        ends = {tokenizer.cls_id, tokenizer.sep_id}
        text = tokenizer.decode([i for i in filled if i not in ends])
        found.append(Filling(at, token, tokenizer.labels([token])[0], probability, text))
    return found

"""Masked language: some tokens of a text are hidden, and the model fills them in (Devlin et al. 2019)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from ..text import Tokenizer
from .batch import NO_TARGET, Batch
from .readers import Reader, drawn

SHARE = 0.15  # of the tokens that are targets
HIDDEN, OTHER = 0.8, 0.1  # of those: how many are replaced by the mask, and how many by any other token
TRAINING, VALIDATION = 1, 2


@dataclass(frozen=True)
class Masking:
    """Each token is a target with probability 0.15; of the targets 80% are replaced by the mask, 10% by a token drawn
    from all that are no control tokens, and 10% stay. Control tokens are never targets. The seed and the step decide
    which, so that a run goes on as it would have."""

    mask_id: int
    words: tuple[int, ...]  # the ids that are no control tokens
    seed: int = 0

    @classmethod
    def of(cls, tokenizer: Tokenizer | None, seed: int) -> Self:
        """That of a tokenizer. Raises ValueError for one without a mask token."""
        if tokenizer is None or tokenizer.mask_id is None:
            raise ValueError(
                "objective masked needs a tokenizer with a mask token: pellucid tokenize --control [MASK] makes one"
            )
        ids = range(max(tokenizer.vocab_size, 1 + max(tokenizer.control_ids, default=0)))
        controls = tokenizer.control_ids
        return cls(tokenizer.mask_id, tuple(id for id in ids if tokenizer.has_text(id) and id not in controls), seed)

    def reader(self, reader: Reader) -> Reader:
        """The batches of a reader whose targets are the ids themselves, with tokens hidden."""
        return lambda step: self.hide(reader(step), (step, TRAINING))

    def held_back(self, batches: list[Callable[[], Batch]]) -> list[Callable[[], Batch]]:
        """The same for validation: each time the same tokens are hidden."""
        return [self._later(batch, number) for number, batch in enumerate(batches)]

    def _later(self, batch: Callable[[], Batch], number: int) -> Callable[[], Batch]:
        return lambda: self.hide(batch(), (number, VALIDATION))

    def hide(self, batch: Batch, step: tuple[int, ...]) -> Batch:
        """A batch whose targets are the tokens that were hidden from its ids."""
        draw, shape, words = drawn(self.seed, *step), batch.ids.shape, np.asarray(self.words)
        ids, targets = batch.ids.numpy().copy(), batch.targets.numpy()
        chosen = (draw.random(shape) < SHARE) & np.isin(ids, words) & (targets != NO_TARGET)
        kind, others = draw.random(shape), words[draw.integers(0, len(words), shape)]
        ids[chosen & (kind < HIDDEN)] = self.mask_id
        other = chosen & (kind >= HIDDEN) & (kind < HIDDEN + OTHER)
        ids[other] = others[other]
        targets = np.where(chosen, targets, NO_TARGET)
        return Batch(torch.from_numpy(ids), torch.from_numpy(targets), batch.mask, batch.types)

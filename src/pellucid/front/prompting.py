"""From what a person gives, texts or ids, one or several, to what a model reads."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..generation.prompts import Prompt, is_one, pad_right
from ..model.transformer import Transformer
from ..text import Tokenizer


@dataclass(frozen=True, eq=False)
class Prompting:
    """How prompts become ids for one model: its tokenizer, and what an encoder-decoder's answer begins with."""

    transformer: Transformer
    tokenizer: Tokenizer | None
    name: str
    start_id: int | None

    @property
    def words(self) -> Tokenizer:
        """The tokenizer. Raises ValueError if there is none."""
        if self.tokenizer is None:
            raise ValueError(f"{self.name} has no tokenizer: give token ids instead of text")
        return self.tokenizer

    def ids(self, prompt: Prompt) -> list[int]:
        """The ids of a text, or the ids given."""
        return self.words.encode(prompt) if isinstance(prompt, str) else list(prompt)

    def several(self, prompts: Iterable[Prompt]) -> Iterator[list[int]]:
        """The ids of each of several texts, as they are asked for."""
        if isinstance(prompts, str):
            raise ValueError("several texts were expected, got one: put it in a list")
        return map(self.ids, prompts)

    def batch(
        self, prompt: str | Sequence[Any] | Tensor, mask: Tensor | Sequence[Sequence[int]] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Ids B x T, and a padding mask: the given one, or one that says where rows differ in length."""
        device = self.transformer.W_U.device
        mask = mask if mask is None or isinstance(mask, Tensor) else torch.tensor(mask)
        if isinstance(prompt, Tensor):
            return (prompt[None] if prompt.ndim == 1 else prompt).to(device), mask
        rows = [self.ids(item) for item in ([prompt] if is_one(prompt) else prompt)]
        if not rows or not all(rows):
            raise ValueError("there is nothing to trace: a prompt has no tokens")
        ids, padding = pad_right(rows, device)
        if mask is not None and padding is not None:
            raise ValueError("a mask goes with ids of one length; texts of different lengths get theirs by themselves")
        return ids, padding if mask is None else mask

    def answers(self, prompt: str | Sequence[Any] | Tensor) -> Any:
        """Texts of a decoder with an encoder as it writes them, after the start id and with no end; ids as they are."""
        if not isinstance(prompt, str):
            one = isinstance(prompt, Tensor) or is_one(prompt)
            return prompt if one else [self.answers(each) for each in prompt]
        if self.start_id is None:
            raise ValueError(f"{self.name} does not say which id its answers begin with: give ids")
        ids = self.ids(prompt)
        return [self.start_id, *(ids[:-1] if ids and ids[-1] in self.words.eos_ids else ids)]

    def asked(self, prompts: list[Any]) -> tuple[list[Any], list[Any] | None]:
        """What is continued, and what an encoder reads first: an encoder-decoder's prompt is its source text."""
        if self.transformer.encoder is None:
            return prompts, None
        if self.start_id is None:
            raise ValueError(f"{self.name} does not say which id its answers begin with: give the Model its start_id")
        return [[self.start_id]] * len(prompts), prompts

"""Prompts: texts or ids, one or several, checked, and side by side where they differ in length."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ..model.config import Config
from ..model.flow import Looks, Memory
from ..model.transformer import Transformer
from .line import Tokenizer

Prompt = str | Sequence[int]

Padded = tuple[Int[Tensor, "B T"], Int[Tensor, "B T"] | None]


def is_one(prompt: str | Sequence[Any]) -> bool:
    """Whether a prompt is one text or one list of ids, not a list of either; an empty list is one prompt of no ids.

    Raises ValueError for what is neither.
    """
    if isinstance(prompt, bytes) or not isinstance(prompt, str | Sequence):
        raise ValueError(f"a prompt is a text, a list of ids, or a list of either, got {type(prompt).__name__}")
    return isinstance(prompt, str) or all(isinstance(item, int) for item in prompt)


def pad_left(rows: Sequence[Sequence[int]], device: torch.device) -> Padded:
    """Ids with id 0 before the shorter rows, and the mask that says so (none if all are equally long)."""
    longest = max(len(row) for row in rows)
    return _padded([[0] * (longest - len(row)) + [1] * len(row) for row in rows], rows, device)


def pad_right(rows: Sequence[Sequence[int]], device: torch.device) -> Padded:
    """Ids with id 0 behind the shorter rows, and the mask that says so (none if all are equally long)."""
    longest = max(len(row) for row in rows)
    return _padded([[1] * len(row) + [0] * (longest - len(row)) for row in rows], rows, device)


def _padded(mask: list[list[int]], rows: Sequence[Sequence[int]], device: torch.device) -> Padded:
    tokens = [iter(row) for row in rows]
    ids = [[next(row) if there else 0 for there in places] for row, places in zip(tokens, mask, strict=True)]
    found = torch.tensor(ids, dtype=torch.long, device=device)
    return found, None if all(map(all, mask)) else torch.tensor(mask, device=device)


def checked(prompt: Sequence[int], row: int, config: Config) -> list[int]:
    """Refuse what the model cannot read."""
    ids = list(prompt)
    if not ids:
        raise ValueError(f"prompt {row} is empty: it needs at least one token to start from")
    for token in ids:
        if not isinstance(token, Integral) or isinstance(token, bool) or not 0 <= token < config.vocab_size:
            raise ValueError(f"prompt {row} must hold ids in 0..{config.vocab_size - 1}, got {token!r}")
    if len(ids) > config.context_length:
        raise ValueError(f"prompt {row} has {len(ids)} tokens, the context only {config.context_length}: shorten it")
    return ids


def prompt_ids(prompt: Prompt, row: int, transformer: Transformer, tokenizer: Tokenizer | None) -> list[int]:
    """The ids a prompt starts from. Raises ValueError as `generate` says."""
    if isinstance(prompt, str):
        if tokenizer is None:
            raise ValueError(f"prompt {row} is text, and there is no tokenizer: give a list of ids")
        ids = tokenizer.encode(prompt)
    elif isinstance(prompt, Sequence) and not isinstance(prompt, bytes):
        ids = list(prompt)
    else:
        raise ValueError(f"prompt {row} must be a text or a list of ids, got {type(prompt).__name__}")
    if not ids and tokenizer is not None and tokenizer.bos_id is not None:
        ids = [tokenizer.bos_id]
    return checked(ids, row, transformer.config)


@torch.no_grad()
def memory_of(
    transformer: Transformer, tokenizer: Tokenizer | None, sources: Sequence[Prompt] | None, looks: Looks | None = None
) -> Memory | None:
    """What the encoder makes of the source texts."""
    if sources is None:
        return None
    if transformer.encoder is None:
        raise ValueError("this model has no encoder: it takes no source text")
    rows = [prompt_ids(source, row, transformer.encoder, tokenizer) for row, source in enumerate(sources)]
    ids, mask = pad_right(rows, transformer.W_U.device)
    return transformer.encode(ids, mask, looks)


def with_ends(stop_ids: Sequence[int], transformer: Transformer, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    """The tokenizer's end ids after the given ones; those past the model's vocabulary never come."""
    ends = () if tokenizer is None else tokenizer.eos_ids
    return tuple(dict.fromkeys((*stop_ids, *(id for id in ends if id < transformer.config.vocab_size))))


def without_text(transformer: Transformer, tokenizer: Tokenizer | None) -> list[int]:
    return [] if tokenizer is None else tokenizer.ids_without_text(transformer.config.vocab_size)

"""Prompts: one or several, and rows of ids of different lengths side by side."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

Padded = tuple[Int[Tensor, "B T"], Int[Tensor, "B T"] | None]


def is_one(prompt: str | Sequence[Any]) -> bool:
    """Whether a prompt is one text or one list of ids, not a list of either; an empty list is one prompt of no ids."""
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

"""Adapters to files and back, beside the model that they belong to."""

import os
from pathlib import Path

from ..model.transformer import Transformer
from ..weights.adapters import Shape, endings, places, read_adapter, write_adapter
from .lora import Adapters, attach


def load_adapter(transformer: Transformer, folder: str | os.PathLike[str]) -> Adapters:
    """Put the adapter in a folder, ours or one of PEFT's, beside the matrices of a model, in the model's precision.

    Raises CheckpointError for one that does not fit the model or asks for more than low-rank updates, ValueError for a
    model that is adapted already.
    """
    shape, updates = read_adapter(folder, transformer.config)
    return attach(transformer, updates, shape.dropout)


def save_adapter(folder: str | os.PathLike[str], adapters: Adapters, base: str | None = None) -> Path:
    """Save adapters in PEFT's layout, with the name of the model that they belong to; gives back the path.

    Raises ValueError for adapters of several ranks or scales, which one such file does not say.
    """
    updates = adapters.updates()
    kinds = {(update.A.shape[0], update.scale) for update in updates}
    if len(kinds) != 1:
        raise ValueError(f"one adapter has one rank and one scale, got {sorted(kinds)}")
    ((rank, scale),) = kinds
    dropout = max(each.dropout for each in adapters.adapted.values())
    chosen = [update.place for update in updates]
    targets = endings(chosen, places(adapters.transformer.config))
    return write_adapter(folder, Shape(rank, round(scale * rank, 9), dropout, base), updates, targets)

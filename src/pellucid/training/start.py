"""What a run starts from, where it is a model that has learned already."""

from dataclasses import replace

import torch

from ..model.config import Dropout
from ..model.plain import from_plain
from ..text import Tokenizer
from ..text.finding import find_tokenizer
from ..weights.checkpoint import Checkpoint
from ..weights.loading import load_checkpoint
from .settings import RunSettings


def start_of(settings: RunSettings) -> Checkpoint | None:
    """The checkpoint to train on, if any; beside it the model's table may only say how much is dropped.

    Raises ValueError for other fields, and for a model that edits.json changes.
    """
    table = dict(settings.model)
    if "start" not in table:
        return None
    name, dropout = str(table.pop("start")), table.pop("dropout", None)
    if table:
        raise ValueError(f"model.start brings its own shape: {', '.join(table)} cannot be given beside it")
    checkpoint = load_checkpoint(name, dtype=torch.float32)
    if checkpoint.edits_file is not None:
        raise ValueError(f"{name} is edited by its edits.json, and a model is trained as its weights are: take it away")
    if dropout is None:
        return checkpoint
    config = replace(checkpoint.config, dropout=from_plain(Dropout, dropout, "model.dropout"))
    checkpoint.transformer.config = config
    return replace(checkpoint, config=config)


def own_tokenizer(checkpoint: Checkpoint) -> Tokenizer | None:
    """A checkpoint's own tokenizer, if it brings one."""
    return find_tokenizer(checkpoint.folder, checkpoint.tokenizer_file, checkpoint.gguf_metadata)

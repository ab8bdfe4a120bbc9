"""Opening a model by name or by file."""

import os

import torch

from ..inside.edit_files import read_edits
from ..text.finding import find_tokenizer
from ..weights.checkpoint import end_ids, forbidden_ids
from ..weights.loading import load_checkpoint
from .model import Model


def load(
    name: str | os.PathLike[str], device: str | torch.device = "cpu", dtype: torch.dtype | str | None = None
) -> Model:
    """Open a model: a known name ("smollm2"), a folder, a .gguf file, or a hub id.

    `dtype` None keeps the file's precision (float32 for quantized files). Raises ValueError with what was expected when
    the name is unknown or the files do not make a model this package has.
    """
    found = load_checkpoint(name, device, dtype)
    tokenizer = find_tokenizer(found.folder, found.tokenizer_file, found.gguf_metadata)
    ends, never = end_ids(found.generation), forbidden_ids(found.generation)
    start = found.generation.get("decoder_start_token_id")
    model = Model(found.transformer, tokenizer, os.fspath(name), ends, start, never)
    return model if found.edits_file is None else model.edited(*read_edits(found.edits_file))

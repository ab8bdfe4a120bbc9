"""What an opened checkpoint is, and the last steps that all layouts share on the way to one."""

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..model.config import Config
from ..model.transformer import Transformer
from .errors import CheckpointError
from .names import Layout, check_layers
from .outline import outline
from .reading import read

EDITS = "edits.json"


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds. `transformer` is in eval mode (no dropout).

    `source` is the path the weights came from. A tokenizer may lie in `folder`, or be the one file `tokenizer_file`; a
    .gguf file has neither, its `gguf_metadata` holds it. `generation` are the checkpoint's own settings for generating
    text, spelled as in Hugging Face's files: end-of-text ids (one, or a list), sampling. With an `edits_file` the
    model is what these weights are under those edits.
    """

    config: Config
    transformer: Transformer
    source: str
    folder: Path | None = None
    gguf_metadata: Mapping[str, Any] | None = None
    generation: Mapping[str, Any] = field(default_factory=dict)
    tokenizer_file: Path | None = None
    edits_file: Path | None = None


def assemble(
    layout: Layout,
    tensors: dict[str, Tensor],
    config: Config,
    dtype: torch.dtype | None,
    device: torch.device | str,
    mapped: bool = True,
) -> Transformer:
    """The transformer of a config with a file's tensors (under their plain names), checked against each other first.

    `mapped`: the tensors are pages of a file, not memory of this process. Raises CheckpointError where they do not fit.
    """
    check_layers(layout, tensors, config)
    transformer = outline(config)
    transformer.load_state_dict(read(layout, tensors, transformer, dtype, device, mapped), assign=True)
    return transformer


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Says which file or folder an error comes from, where the error does not: a Config that cannot be built, tensors
    that do not fit."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, CheckpointError) and re.search(rf"(^|of ){re.escape(str(path))}[:/\\]", str(error)):
            raise
        raise CheckpointError(f"{path}: {error}") from error


def forbidden_ids(settings: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids that a checkpoint's own settings say are never to be generated (a Marian model's padding, for one).

    Of `bad_words_ids` those that end the text stay possible, as Hugging Face has it. Words of several ids, which no
    setting here can hold back, are said in a warning.
    """
    words = settings.get("bad_words_ids") or []
    longer = [word for word in words if len(word) > 1]
    if longer:
        said = "the checkpoint also forbids sequences of ids, which may still be generated"
        warnings.warn(f"{said}: {longer}", stacklevel=2)
    single = [word[0] for word in words if len(word) == 1 and word[0] not in end_ids(settings)]
    return tuple(dict.fromkeys([*single, *(settings.get("suppress_tokens") or [])]))


def end_ids(settings: Mapping[str, Any]) -> tuple[int, ...]:
    """The end-of-text ids that a checkpoint's own settings name: none, one, or a list."""
    found = settings.get("eos_token_id")
    return tuple(found) if isinstance(found, list) else () if found is None else (found,)

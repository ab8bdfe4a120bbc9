"""From the settings of a run to its parts: data, tokenizer, transformer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..model.checks import one_of
from ..model.config import Config, Dropout
from ..model.plain import from_plain
from ..model.transformer import Transformer
from ..text import Tokenizer
from ..text.finding import find_tokenizer
from ..weights.checkpoint import Checkpoint
from ..weights.loading import load_checkpoint
from ..weights.presets import preset
from ..weights.saving import tokenizer_files
from .batch import NO_TARGET, Batch, Objective
from .documents import Corpus, corpus_of, standard_library, texts
from .readers import Documents, Reader, Sequential, Span, Windows, once, split
from .settings import Data, RunSettings
from .token_file import NO_FINGERPRINT, TokenFile, open_tokens
from .tokenizing import Progress, tokenize
from .vocabulary import fingerprint, train_bpe, train_characters, write_files

TOKENS = "data.tokens"
SHAPE = {"n_layers": 4, "n_heads": 4, "d_model": 128}
Task = Callable[[str, int | None], Progress]  # (what is done, bytes of text in all) -> told of bytes that are done


@dataclass(frozen=True)
class Material:
    """What a run reads: the tokenizer (None where token files came without), tokens to train on and to validate with,
    and the checkpoint that it starts from, if any."""

    tokenizer: Tokenizer | None
    training: Span
    validation: Span | None
    start: Checkpoint | None

    def reader(self, data: Data, seed: int) -> Reader:
        """The batches to train on."""
        match data.order:
            case "windows":
                return Windows(self.training, data.length, data.rows, seed)
            case "sequential":
                return Sequential(self.training, data.length, data.rows)
            case _:
                return Documents(self.training, data.length, data.rows, seed)

    def held_back(self, length: int, rows: int, most: int) -> list[Callable[[], Batch]]:
        """The batches to validate with."""
        batches = [] if self.validation is None else once(self.validation, length, rows)
        return batches[:most] if most else batches


def gather(settings: RunSettings, folder: Path, task: Task) -> Material:
    """Open or make the tokens of a run; what is made stays in its folder. Raises ValueError."""
    data, start = settings.data, _start(settings)
    if data.tokens:
        file = open_tokens(Path(data.tokens).expanduser())
        tokenizer = find_tokenizer(file.path.parent) if start is None else _own(start)
    else:
        file, tokenizer = _from_text(data, folder, start, task)
    if tokenizer is not None and file.fingerprint not in (NO_FINGERPRINT, fingerprint(tokenizer)):
        raise ValueError(f"{file.path}: these tokens are of another vocabulary than the tokenizer's: make them again")
    if data.validation_tokens:
        other = open_tokens(Path(data.validation_tokens).expanduser())
        if (other.vocab_size, other.fingerprint) != (file.vocab_size, file.fingerprint):
            raise ValueError(f"{other.path}: tokens of another vocabulary than {file.path}: make both with one")
        return Material(tokenizer, Span(file, 0, len(file)), Span(other, 0, len(other)), start)
    return Material(tokenizer, *split(file, data.validation), start)


def build(settings: RunSettings, material: Material) -> Transformer:
    """The transformer of a run, on its device: random weights from torch's generator, or those of a checkpoint.

    Raises ValueError for a shape that cannot be, or a vocabulary smaller than the data's.
    """
    needed = material.training.file.vocab_size
    if material.start is None:
        transformer = Transformer(_config(settings, needed))
    else:
        transformer = material.start.transformer.requires_grad_(True)
        # Copies in plain order: a mapped file must not stand behind weights that change.
        plain = torch.contiguous_format
        own = {name: weight.clone(memory_format=plain) for name, weight in transformer.state_dict().items()}
        transformer.load_state_dict(own, assign=True)
    config = transformer.config
    if config.vocab_size < needed:
        raise ValueError(f"the data's vocabulary has {needed} ids, the model only {config.vocab_size}")
    if config.context_length < settings.data.length:
        raise ValueError(f"data.length {settings.data.length} is more than the context of {config.context_length}")
    return transformer.to(settings.device)


def next_token(transformer: Transformer, batch: Batch) -> tuple[Tensor, int]:
    """Cross-entropy of each position's target, in nats, over logits of the whole batch."""
    logits = transformer(batch.ids, batch.mask, types=batch.types, source=batch.source, source_mask=batch.source_mask)
    targets = batch.targets.flatten()
    total = F.cross_entropy(logits.flatten(0, 1).float(), targets, ignore_index=NO_TARGET, reduction="sum")
    return total, int((targets != NO_TARGET).sum())


def objective_of(settings: RunSettings) -> Objective:
    """The objective that the settings name. Raises ValueError."""
    one_of("objective", settings.objective, tuple(OBJECTIVES))
    return OBJECTIVES[settings.objective]


OBJECTIVES: dict[str, Objective] = {"next_token": next_token}


def _config(settings: RunSettings, vocab_size: int) -> Config:
    table = dict(settings.model)
    if "preset" in table:
        base = _changeable(preset(str(table.pop("preset"))), table)
    else:
        base = {**SHAPE, "context_length": settings.data.length}
    return from_plain(Config, {**base, "vocab_size": vocab_size, **table}, "model")


def _changeable(shape: Config, changes: Mapping[str, Any]) -> dict[str, Any]:
    """A published shape's fields, without sizes that only followed from those that change."""
    usual = {
        "n_kv_heads": (shape.n_heads, ("n_heads",)),
        "d_head": (shape.d_model // shape.n_heads, ("d_model", "n_heads")),
        "d_ff": (4 * shape.d_model, ("d_model",)),
    }
    fields = shape.to_dict()
    for name, (size, sources) in usual.items():
        if fields[name] == size and not changes.keys().isdisjoint(sources):
            del fields[name]
    return fields


def _start(settings: RunSettings) -> Checkpoint | None:
    """The checkpoint to train on; beside it the model's table may only say how much is dropped."""
    table = dict(settings.model)
    if "start" not in table:
        return None
    name, dropout = str(table.pop("start")), table.pop("dropout", None)
    if table:
        raise ValueError(f"model.start brings its own shape: {', '.join(table)} cannot be given beside it")
    checkpoint = load_checkpoint(name, dtype=torch.float32)
    if dropout is None:
        return checkpoint
    config = replace(checkpoint.config, dropout=from_plain(Dropout, dropout, "model.dropout"))
    checkpoint.transformer.config = config
    return replace(checkpoint, config=config)


def _own(checkpoint: Checkpoint) -> Tokenizer | None:
    return find_tokenizer(checkpoint.folder, checkpoint.tokenizer_file, checkpoint.gguf_metadata)


def _from_text(data: Data, folder: Path, start: Checkpoint | None, task: Task) -> tuple[TokenFile, Tokenizer]:
    corpus = corpus_of(data.paths, data.field) if data.paths else standard_library()
    tokenizer = _tokenizer(data, corpus, folder, start)
    path = folder / TOKENS
    if path.exists():
        return open_tokens(path), tokenizer
    return tokenize(path, tokenizer, corpus, data.jobs, task("tokenizing", corpus.size)), tokenizer


def _tokenizer(data: Data, corpus: Corpus, folder: Path, start: Checkpoint | None) -> Tokenizer:
    """A run's tokenizer: the one in its folder, that of the model it starts from, or one by name."""
    if (folder / TOKENS).exists() and (folder / "tokenizer.json").exists():
        return Tokenizer.from_folder(folder)
    if start is not None and not data.tokenizer:
        return _taken(start, folder)
    return tokenizer_for(data.tokenizer or "characters", corpus, folder, data.vocab_size)


def tokenizer_for(
    name: str, corpus: Corpus, folder: Path, vocab_size: int = 1024, controls: Sequence[str] = ()
) -> Tokenizer:
    """A tokenizer whose files, if it has any, are put into the folder: "characters" or "bpe" (of at most `vocab_size`
    tokens), made of the corpus with further control tokens, or else that of the model of this name.

    Raises ValueError.
    """
    if name == "characters":
        return write_files(folder, train_characters(texts(corpus.read()), controls))
    if name == "bpe":
        return write_files(folder, train_bpe(texts(corpus.read()), vocab_size, controls))
    if controls:
        raise ValueError(f"control tokens can be added to a new vocabulary only, not to that of {name}")
    return _taken(load_checkpoint(name, device="meta"), folder)


def _taken(checkpoint: Checkpoint, folder: Path) -> Tokenizer:
    """A checkpoint's own tokenizer."""
    tokenizer = _own(checkpoint)
    if tokenizer is None:
        raise ValueError(f"{checkpoint.source} has no tokenizer: name another under data.tokenizer")
    if checkpoint.folder is not None:
        write_files(folder, tokenizer_files(checkpoint.folder))
    return tokenizer

"""From the settings of a run to its parts: data, tokenizer, transformer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..model.checks import one_of
from ..model.config import Config
from ..model.plain import from_plain
from ..model.transformer import Transformer
from ..text import Tokenizer
from ..text.finding import find_tokenizer
from ..weights.checkpoint import Checkpoint
from ..weights.loading import load_checkpoint
from ..weights.presets import preset
from ..weights.saving import tokenizer_files
from . import translations
from .batch import Batch, Objective
from .conversations import NO_TEMPLATE, conversations
from .documents import Corpus, corpus_of, size_of, standard_library, texts
from .examples import Beside, Pairs, Translations, opened, split_documents, split_pairs, write
from .lora import adapt
from .masked import Masking
from .objectives import NAMES, Targets, check_model
from .packed import Packed
from .readers import Documents, Reader, Sequential, Span, Windows, once, split
from .settings import Data, RunSettings
from .start import own_tokenizer, start_of
from .token_file import NO_FINGERPRINT, TokenFile, open_tokens
from .tokenizing import Progress, tokenize
from .vocabulary import MASK, fingerprint, ids_needed, train_bpe, train_characters, write_files

TOKENS = "data.tokens"
SHAPE = {"n_layers": 4, "n_heads": 4, "d_model": 128}
BOTH_WAYS = ({"kind": "Bidirectional"},)
Task = Callable[[str, int | None], Progress]  # (what is done, bytes of text in all) -> told of bytes that are done


@dataclass(frozen=True)
class Material:
    """What a run reads: the tokenizer (None where token files came without), what to train on and to validate with,
    the checkpoint that it starts from, if any, and how batches are made: for which objective, in which order, and with
    which id a translation starts."""

    tokenizer: Tokenizer | None
    training: Span | Pairs
    validation: Span | Pairs | None
    start: Checkpoint | None
    objective: str = "next_token"
    order: str = "windows"
    start_id: int | None = None

    def reader(self, data: Data, seed: int) -> Reader:
        """The batches to train on."""
        if isinstance(self.training, Pairs):
            return self._translations(self.training, data.rows, seed)
        kind = {"windows": Windows, "documents": Documents, "packed": Packed}.get(self.order)
        if kind is None:
            reader = Sequential(self.training, data.length, data.rows)
        else:
            reader = kind(self.training, data.length, data.rows, seed)
        return Masking.of(self.tokenizer, seed).reader(reader) if self.objective == "masked" else reader

    def held_back(self, length: int, rows: int, most: int) -> list[Callable[[], Batch]]:
        """The batches to validate with."""
        span = self.validation
        if span is None:
            return []
        if isinstance(span, Pairs):
            batches = self._translations(span, rows).once()
        elif self.order in ("documents", "packed"):
            batches = (Packed if self.order == "packed" else Documents)(span, length, rows).once()
        else:
            batches = once(span, length, rows)
        if self.objective == "masked":
            batches = Masking.of(self.tokenizer, 0).held_back(batches)
        return batches[:most] if most else batches

    def _translations(self, pairs: Pairs, rows: int, seed: int = 0) -> Translations:
        assert self.start_id is not None, "gather refuses translations without it"
        return Translations(pairs, self.start_id, rows, seed)


def gather(settings: RunSettings, folder: Path, task: Task) -> Material:
    """Open or make the tokens of a run; what is made stays in its folder. Raises ValueError."""
    data, start = settings.data, start_of(settings)
    one_of("objective", settings.objective, NAMES)
    if settings.objective == "translation":
        return _translations(data, folder, start, task)
    if settings.objective == "instruction":
        return _instructions(data, folder, start, task)
    if data.tokens:
        file = open_tokens(Path(data.tokens).expanduser())
        tokenizer = find_tokenizer(file.path.parent) if start is None else own_tokenizer(start)
    else:
        file, tokenizer = _from_text(settings, folder, start, task)
    if tokenizer is not None and file.fingerprint not in (NO_FINGERPRINT, fingerprint(tokenizer)):
        raise ValueError(f"{file.path}: these tokens are of another vocabulary than the tokenizer's: make them again")
    if data.validation_tokens:
        other = open_tokens(Path(data.validation_tokens).expanduser())
        if (other.vocab_size, other.fingerprint) != (file.vocab_size, file.fingerprint):
            raise ValueError(f"{other.path}: tokens of another vocabulary than {file.path}: make both with one")
        spans = Span(file, 0, len(file)), Span(other, 0, len(other))
    else:
        spans = split(file, data.validation)
    if settings.objective == "masked":
        spans = replace(spans[0], ahead=0), None if spans[1] is None else replace(spans[1], ahead=0)
    return Material(tokenizer, *spans, start, settings.objective, data.order or "windows")


def _translations(data: Data, folder: Path, start: Checkpoint | None, task: Task) -> Material:
    """Pairs of texts, all of which fit into a row."""
    _check_examples("translation", data, ("", "documents"))
    fields = (data.source_field, data.target_field)
    tokenizer = _tokenizer(data, translations.corpus(data.paths, fields), folder, start)
    start_id = tokenizer.bos_id if start is None else start.generation.get("decoder_start_token_id", tokenizer.bos_id)
    if start_id is None:
        raise ValueError(
            "objective translation needs an id that a translation starts with, and this tokenizer has none"
        )
    files = Beside(folder / TOKENS, folder / "source.tokens", ids_needed(tokenizer))
    if not files.path.exists():
        examples = translations.translations(data.paths, fields, tokenizer)
        write(files, tokenizer, examples, task("tokenizing", translations.bytes_of(data.paths)))
    pairs = split_pairs(*opened(files), data.validation)
    lengths = np.concatenate([each.lengths().max(1) for each in pairs if each is not None])
    if lengths.max() > data.length:
        raise ValueError(
            f"{int((lengths > data.length).sum())} of {len(lengths)} pairs have more tokens than data.length = "
            f"{data.length} (the longest {lengths.max()}): raise it, or leave them out"
        )
    return Material(tokenizer, *pairs, start, "translation", "documents", start_id)


def _instructions(data: Data, folder: Path, start: Checkpoint | None, task: Task) -> Material:
    """Conversations, of which the assistant's part is learnt."""
    _check_examples("instruction", data, ("", "documents", "packed"))
    if start is None and data.tokenizer in ("", "characters", "bpe"):
        raise ValueError(NO_TEMPLATE)
    tokenizer = _tokenizer(data, Corpus(lambda: iter(()), 0), folder, start)
    files = Beside(folder / TOKENS, folder / "answers.tokens", 2)
    if not files.path.exists():
        examples = conversations(data.paths, data.field or "messages", tokenizer)
        write(files, tokenizer, examples, task("tokenizing", size_of(data.paths)))
    spans = split_documents(*opened(files), data.validation)
    return Material(tokenizer, *spans, start, "instruction", data.order or "documents")


def _check_examples(objective: str, data: Data, orders: tuple[str, ...]) -> None:
    if data.tokens or not data.paths:
        raise ValueError(f"objective {objective} reads texts: name them under data.text, not token files")
    if data.order not in orders:
        raise ValueError(
            f"objective {objective} reads each example by itself: data.order must be {' or '.join(orders[1:])}, "
            f"got {data.order}"
        )


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
    check_model(settings.objective, config)
    if config.vocab_size < needed:
        raise ValueError(f"the data's vocabulary has {needed} ids, the model only {config.vocab_size}")
    context = min(each.context_length for each in (config, config.encoder) if each is not None)
    if context < settings.data.length:
        raise ValueError(f"data.length {settings.data.length} is more than the context of {context}")
    if settings.lora is not None:
        adapt(transformer, settings.lora)
    return transformer.to(settings.device)


def objective_of(settings: RunSettings) -> Objective:
    """The objective that the settings name. Raises ValueError."""
    one_of("objective", settings.objective, NAMES)
    return Targets(settings.smoothing)


def _config(settings: RunSettings, vocab_size: int) -> Config:
    table = dict(settings.model)
    base: dict[str, Any]
    if "preset" in table:
        base = _changeable(preset(str(table.pop("preset"))), table)
    else:
        base = {**SHAPE, "context_length": settings.data.length}
        base |= {"masks": BOTH_WAYS} if settings.objective == "masked" else {}
    fields = {**base, "vocab_size": vocab_size, **table}
    if settings.objective == "translation":
        # An encoder of the decoder's shape, where nothing else is said.
        usual = base.get("encoder") or {
            **fields,
            "encoder": None,
            "masks": BOTH_WAYS,
            "head": None,
            "tied": True,
        }
        fields["encoder"] = {**usual, **(table.get("encoder") or {}), "vocab_size": fields["vocab_size"]}
    return from_plain(Config, fields, "model")


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


def _from_text(
    settings: RunSettings, folder: Path, start: Checkpoint | None, task: Task
) -> tuple[TokenFile, Tokenizer]:
    data = settings.data
    corpus = corpus_of(data.paths, data.field or "text") if data.paths else standard_library()
    tokenizer = _tokenizer(data, corpus, folder, start, (MASK,) if settings.objective == "masked" else ())
    path = folder / TOKENS
    if path.exists():
        return open_tokens(path), tokenizer
    return tokenize(path, tokenizer, corpus, data.jobs, task("tokenizing", corpus.size)), tokenizer


def _tokenizer(
    data: Data, corpus: Corpus, folder: Path, start: Checkpoint | None, controls: Sequence[str] = ()
) -> Tokenizer:
    """A run's tokenizer: the one in its folder, that of the model it starts from, or one by name."""
    if (folder / TOKENS).exists() and (folder / "tokenizer.json").exists():
        return Tokenizer.from_folder(folder)
    if start is not None and not data.tokenizer:
        return _taken(start, folder)
    name = data.tokenizer or "characters"
    made = name in ("characters", "bpe")
    return tokenizer_for(name, corpus, folder, data.vocab_size, controls if made else ())


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
    tokenizer = own_tokenizer(checkpoint)
    if tokenizer is None:
        raise ValueError(f"{checkpoint.source} has no tokenizer: name another under data.tokenizer")
    if checkpoint.folder is not None:
        write_files(folder, tokenizer_files(checkpoint.folder))
    return tokenizer

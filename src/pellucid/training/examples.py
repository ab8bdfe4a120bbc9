"""Pairs of token files that are made together: a text and what belongs to each of its documents."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..text import Tokenizer
from .batch import NO_TARGET, Batch
from .readers import InRounds, Rounds, Span, check_share
from .token_file import TokenFile, open_tokens, writing
from .vocabulary import fingerprint, ids_needed

Example = tuple[list[int], list[int], int]  # ids, what belongs to them, how many bytes of the source it took


@dataclass(frozen=True)
class Beside:
    """Two token files: one, and beside it another of as many documents, of `size` kinds of ids."""

    path: Path
    beside: Path
    size: int


def write(files: Beside, tokenizer: Tokenizer, examples: Iterable[Example], progress: Callable[[int], object]) -> None:
    """Write both files; the first is moved to its place last, so that where it is the second is too."""
    mark = fingerprint(tokenizer)
    with writing(files.path, ids_needed(tokenizer), mark) as first, writing(files.beside, files.size, mark) as second:
        for ids, other, size in examples:
            first.add(ids)
            second.add(other)
            progress(size)


def opened(files: Beside) -> tuple[TokenFile, TokenFile]:
    """Both files. Raises ValueError where they do not belong together."""
    first, second = open_tokens(files.path), open_tokens(files.beside)
    if len(first.ends) != len(second.ends):
        raise ValueError(f"{files.beside} is of other documents than {files.path}: remove both, to make them again")
    return first, second


def split_documents(file: TokenFile, flags: TokenFile | None, share: float) -> tuple[Span, Span | None]:
    """The documents to train on, and the last `share` of them (0: none) to validate with."""
    cut = _cut(len(file.ends), share)
    at = int(file.ends[cut - 1])
    return Span(file, 0, at, flags=flags), Span(file, at, len(file), flags=flags) if at < len(file) else None


@dataclass(frozen=True)
class Pairs:
    """Pairs of texts by their numbers from `first` up to `last`: what an encoder reads, and what is then written."""

    file: TokenFile
    source: TokenFile
    first: int
    last: int

    def lengths(self) -> np.ndarray:
        """How many ids the source and the text of each pair have."""
        both = [np.diff(file.ends, prepend=np.uint64(0)).astype(np.int64) for file in (self.source, self.file)]
        return np.stack(both, axis=1)[self.first : self.last]

    def pair(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The ids of a source and of its text."""
        return _document(self.source, self.first + number), _document(self.file, self.first + number)


def split_pairs(file: TokenFile, source: TokenFile, share: float) -> tuple[Pairs, Pairs | None]:
    """The pairs to train on, and the last `share` of them (0: none) to validate with."""
    count = len(file.ends)
    cut = _cut(count, share)
    return Pairs(file, source, 0, cut), Pairs(file, source, cut, count) if cut < count else None


class Translations(InRounds):
    """Batches of pairs: the decoder reads `start_id` and then the text, and is to write the text (teacher forcing).

    Pairs of like length stand in one batch; every round takes all of them once, in a new order.
    """

    def __init__(self, pairs: Pairs, start_id: int, rows: int, seed: int = 0):
        self.pairs, self.start_id = pairs, start_id
        self.rounds = Rounds(pairs.lengths().sum(1), rows, seed)

    def _batch(self, chosen: np.ndarray) -> Batch:
        pairs = [self.pairs.pair(number) for number in chosen.tolist()]
        source, source_mask = _padded([source for source, _ in pairs], 0)
        targets, mask = _padded([target for _, target in pairs], NO_TARGET)
        ids = torch.cat((torch.full_like(targets[:, :1], self.start_id), targets[:, :-1]), dim=1)
        ids = torch.where(ids == NO_TARGET, 0, ids)
        masks = [None if bool(each.all()) else each for each in (mask, source_mask)]
        return Batch(ids, targets, masks[0], source=source, source_mask=masks[1])


def _padded(rows: list[np.ndarray], fill: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows side by side with padding behind, and where there is none."""
    found = torch.full((len(rows), max(map(len, rows))), fill, dtype=torch.int64)
    mask = torch.zeros_like(found, dtype=torch.bool)
    for row, ids in enumerate(rows):
        found[row, : len(ids)], mask[row, : len(ids)] = torch.from_numpy(ids), True
    return found, mask


def _document(file: TokenFile, number: int) -> np.ndarray:
    start = int(file.ends[number - 1]) if number else 0
    return file.checked(file.tokens[start : int(file.ends[number])])


def _cut(count: int, share: float) -> int:
    check_share(share)
    cut = int(count * (1.0 - share))
    if not cut:
        raise ValueError(f"of {count} examples none is left to train on when a share of {share} is kept to validate")
    return cut

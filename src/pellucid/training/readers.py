"""Batches of a token file. A reader gives the batch of any step by its number alone: the seed and the step decide what
is drawn, so that a run goes on where it stopped, and any number of processes reads the same order."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from .batch import NO_TARGET, Batch
from .token_file import TokenFile

Reader = Callable[[int], Batch]


@dataclass(frozen=True)
class Span:
    """A stretch of a token file, from id `first` up to id `last`."""

    file: TokenFile
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first

    def pieces(self, starts: np.ndarray, length: int) -> np.ndarray:
        """`length` ids from each of the `starts` (counted in the span)."""
        found = np.stack([self.file.tokens[self.first + start :][:length] for start in starts])
        return self.file.checked(found)

    def needs(self, ids: int) -> None:
        """Raise ValueError if the span holds fewer ids."""
        if len(self) < ids:
            raise ValueError(f"{self.file.path}: {len(self)} tokens are too few: at least {ids} are needed")


def split(file: TokenFile, share: float) -> tuple[Span, Span | None]:
    """The tokens to train on, and the last `share` of the file (0: none) to validate with."""
    if not 0.0 <= share < 1.0:
        raise ValueError(f"the share to validate with must lie in [0, 1), got {share}")
    cut = int(len(file) * (1.0 - share))
    return Span(file, 0, cut), Span(file, cut, len(file)) if cut < len(file) else None


@dataclass(frozen=True)
class Windows:
    """`rows` windows of `length` ids, each from a random start: every start that leaves room for the target is as
    likely. Raises ValueError for a span shorter than one window and its last target."""

    span: Span
    length: int
    rows: int
    seed: int = 0

    def __post_init__(self) -> None:
        self.span.needs(self.length + 1)

    def __call__(self, step: int) -> Batch:
        # numpy's high is exclusive, so that the last start is len - length - 1, whose last target is the last id.
        starts = _drawn(self.seed, step).integers(0, len(self.span) - self.length, self.rows)
        return _shifted(self.span.pieces(starts, self.length + 1))


@dataclass(frozen=True)
class Sequential:
    """Windows one after the other, in order, from the beginning again after the last whole one; no id is a target
    twice in a round."""

    span: Span
    length: int
    rows: int

    def __post_init__(self) -> None:
        self.span.needs(self.length + 1)

    @property
    def windows(self) -> int:
        """How many windows one round has."""
        return (len(self.span) - 1) // self.length

    def __call__(self, step: int) -> Batch:
        number = np.arange(step * self.rows, (step + 1) * self.rows) % self.windows
        return _shifted(self.span.pieces(number * self.length, self.length + 1))


def once(span: Span, length: int, rows: int) -> list[Callable[[], Batch]]:
    """Every whole window of a span once, in batches of at most `rows`, to validate with."""
    span.needs(length + 1)
    starts = np.arange((len(span) - 1) // length) * length
    return [_later(span, starts[i : i + rows], length) for i in range(0, len(starts), rows)]


def _later(span: Span, starts: np.ndarray, length: int) -> Callable[[], Batch]:
    return lambda: _shifted(span.pieces(starts, length + 1))


class Documents:
    """Documents without a view of one another: each is a row of its own, or several if it is longer than `length`.

    A row with two documents would need a mask of the model that tells them apart, position tables that start again in
    the middle of a row, and a slower attention kernel; a row for each is exact with the mask that there is. So that
    little is padded, rows of like length stand in one batch. Every round takes all rows once, in a new order.
    """

    def __init__(self, span: Span, length: int, rows: int, seed: int = 0):
        self.span, self.rows, self.seed = span, rows, seed
        ends = np.asarray(span.file.ends, dtype=np.int64) - span.first
        ends = np.append(ends[(ends > 0) & (ends < len(span))], len(span))
        starts = np.concatenate(([0], ends[:-1]))
        pieces = [
            (at, min(at + length + 1, end)) for start, end in zip(starts, ends, strict=True)
            for at in range(start, end - 1, length)
        ]  # fmt: skip
        if not pieces:
            raise ValueError(f"{span.file.path}: no document has two tokens, one to read and one to predict")
        self.pieces = np.asarray(pieces, dtype=np.int64)

    @property
    def batches(self) -> int:
        """How many batches one round has; the last may be smaller."""
        return -(-len(self.pieces) // self.rows)

    def __call__(self, step: int) -> Batch:
        turn, number = divmod(step, self.batches)
        if turn != self._order[0]:
            self._order = (turn, self._ordered(turn))
        chosen = self.pieces[self._order[1][number]]
        return self._padded(chosen)

    _order: tuple[int, list[np.ndarray]] = (-1, [])

    def _ordered(self, turn: int) -> list[np.ndarray]:
        """The rows of each batch: like lengths together, which of them and in which order left to chance."""
        draw = _drawn(self.seed, turn)
        shuffled = draw.permutation(len(self.pieces))
        lengths = self.pieces[shuffled, 1] - self.pieces[shuffled, 0]
        near = shuffled[np.argsort(lengths, kind="stable")]
        batches = [near[i : i + self.rows] for i in range(0, len(near), self.rows)]
        return [batches[i] for i in draw.permutation(len(batches))]

    def _padded(self, chosen: np.ndarray) -> Batch:
        longest = int((chosen[:, 1] - chosen[:, 0]).max()) - 1
        ids = torch.zeros((len(chosen), longest), dtype=torch.int64)
        targets = torch.full_like(ids, NO_TARGET)
        mask = torch.zeros_like(ids, dtype=torch.bool)
        for row, (start, end) in enumerate(chosen.tolist()):
            tokens = torch.from_numpy(self.span.pieces(np.asarray([start]), end - start)[0])
            ids[row, : len(tokens) - 1], targets[row, : len(tokens) - 1] = tokens[:-1], tokens[1:]
            mask[row, : len(tokens) - 1] = True
        return Batch(ids, targets, None if bool(mask.all()) else mask)


def _drawn(seed: int, step: int) -> np.random.Generator:
    return np.random.default_rng((seed, step))


def _shifted(pieces: np.ndarray) -> Batch:
    tokens = torch.from_numpy(pieces)
    # Copies: whoever changes the targets must not change the ids.
    return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())

"""Batches of a token file. A reader gives the batch of any step by its number alone: the seed and the step decide what
is drawn, so that a run goes on where it stopped, and any number of processes reads the same order."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from .batch import NO_TARGET, Batch
from .token_file import TokenFile

Reader = Callable[[int], Batch]


@dataclass(frozen=True)
class Span:
    """A stretch of a token file, from id `first` up to id `last`.

    The target of a position is the id `ahead` of it: the next one, or for 0 the id itself, as where gaps are filled.
    `flags` is a file beside the first, 1 for each id that may be a target (None: all may).
    """

    file: TokenFile
    first: int
    last: int
    ahead: int = 1
    flags: TokenFile | None = None

    def __len__(self) -> int:
        return self.last - self.first

    def windows(self, starts: np.ndarray, length: int) -> Batch:
        """`length` ids from each of the `starts` (counted in the span), and their targets."""
        at = self.first + np.asarray(starts)[:, None] + np.arange(length + self.ahead)
        tokens = self.file.checked(self.file.tokens[at])
        targets = tokens[:, self.ahead :].copy()  # whoever changes the targets must not change the ids
        if self.flags is not None:
            targets[self.flags.tokens[at[:, self.ahead :]] == 0] = NO_TARGET
        return Batch(torch.from_numpy(tokens[:, :length].copy()), torch.from_numpy(targets))

    def needs(self, ids: int) -> None:
        """Raise ValueError if the span holds fewer ids."""
        if len(self) < ids:
            raise ValueError(f"{self.file.path}: {len(self)} tokens are too few: at least {ids} are needed")

    def ends(self) -> np.ndarray:
        """Where the documents end, counted in the span, at whose ends they are cut off."""
        ends = np.asarray(self.file.ends, dtype=np.int64) - self.first
        return np.append(ends[(ends > 0) & (ends < len(self))], len(self))


def split(file: TokenFile, share: float) -> tuple[Span, Span | None]:
    """The tokens to train on, and the last `share` of the file (0: none) to validate with."""
    check_share(share)
    cut = int(len(file) * (1.0 - share))
    return Span(file, 0, cut), Span(file, cut, len(file)) if cut < len(file) else None


def check_share(share: float) -> None:
    """Raise ValueError for a share to validate with that is none."""
    if not 0.0 <= share < 1.0:
        raise ValueError(f"the share to validate with must lie in [0, 1), got {share}")


@dataclass(frozen=True)
class Windows:
    """`rows` windows of `length` ids, each from a random start: every start that leaves room for the target is as
    likely. Raises ValueError for a span shorter than one window and its last target."""

    span: Span
    length: int
    rows: int
    seed: int = 0

    def __post_init__(self) -> None:
        self.span.needs(self.length + self.span.ahead)

    def __call__(self, step: int) -> Batch:
        # numpy's high is exclusive, so that the last start is len - length - 1, whose last target is the last id.
        starts = drawn(self.seed, step).integers(0, len(self.span) - self.length - self.span.ahead + 1, self.rows)
        return self.span.windows(starts, self.length)


@dataclass(frozen=True)
class Sequential:
    """Windows one after the other, in order, from the beginning again after the last whole one; no id is a target
    twice in a round."""

    span: Span
    length: int
    rows: int

    def __post_init__(self) -> None:
        self.span.needs(self.length + self.span.ahead)

    @property
    def windows(self) -> int:
        """How many windows one round has."""
        return (len(self.span) - self.span.ahead) // self.length

    def __call__(self, step: int) -> Batch:
        number = np.arange(step * self.rows, (step + 1) * self.rows) % self.windows
        return self.span.windows(number * self.length, self.length)


def once(span: Span, length: int, rows: int) -> list[Callable[[], Batch]]:
    """Every whole window of a span once, in batches of at most `rows`, to validate with."""
    span.needs(length + span.ahead)
    starts = np.arange((len(span) - span.ahead) // length) * length
    return [partial(span.windows, starts[i : i + rows], length) for i in range(0, len(starts), rows)]


def pieces_of(span: Span, length: int) -> np.ndarray:
    """(start, number of positions) of each document, or of each `length` positions of a longer one; what has no target
    is left out. Raises ValueError if nothing is left."""
    ends = span.ends()
    starts = np.concatenate(([0], ends[:-1]))
    found = [
        (at, min(length, end - span.ahead - at)) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        for at in range(start, end - span.ahead, length)
    ]  # fmt: skip
    if span.flags is not None:
        flags = span.flags.tokens[span.first + span.ahead :]
        found = [(at, size) for at, size in found if flags[at : at + size].any()]
    if not found:
        least = "two tokens, one to read and one to predict" if span.flags is None else "a target"
        raise ValueError(f"{span.file.path}: no document has {least}")
    return np.asarray(found, dtype=np.int64)


class Rounds:
    """Which rows stand in the batch of a step, rows of like `lengths` together: every round takes all of them once,
    which of them together and in which order left to chance."""

    def __init__(self, lengths: np.ndarray, rows: int, seed: int):
        self.lengths, self.rows, self.seed = lengths, rows, seed

    @property
    def batches(self) -> int:
        """How many batches one round has; the last may be smaller."""
        return -(-len(self.lengths) // self.rows)

    def __call__(self, step: int) -> np.ndarray:
        turn, number = divmod(step, self.batches)
        if turn != self._order[0]:
            draw = drawn(self.seed, turn)
            batches = self.near(draw.permutation(len(self.lengths)))
            self._order = (turn, [batches[i] for i in draw.permutation(len(batches))])
        return self._order[1][number]

    _order: tuple[int, list[np.ndarray]] = (-1, [])

    def near(self, order: np.ndarray | None = None) -> list[np.ndarray]:
        """The rows of each batch, shorter ones first; in this order where they are equally long."""
        order = np.arange(len(self.lengths)) if order is None else order
        order = order[np.argsort(self.lengths[order], kind="stable")]
        return [order[i : i + self.rows] for i in range(0, len(order), self.rows)]


class InRounds(ABC):
    """Batches of examples by number, in `rounds`; each kind says what a batch of some of them is."""

    rounds: Rounds

    @property
    def batches(self) -> int:
        """How many batches one round has; the last may be smaller."""
        return self.rounds.batches

    def __call__(self, step: int) -> Batch:
        return self._batch(self.rounds(step))

    def once(self) -> list[Callable[[], Batch]]:
        """Every example once, to validate with."""
        return [partial(self._batch, chosen) for chosen in self.rounds.near()]

    @abstractmethod
    def _batch(self, chosen: np.ndarray) -> Batch:
        """The batch of the examples with these numbers."""


class Documents(InRounds):
    """Documents without a view of one another: each is a row of its own, or several if it is longer than `length`.

    Rows of like length stand in one batch, so that little is padded. Every round takes all rows once, in a new order.
    """

    def __init__(self, span: Span, length: int, rows: int, seed: int = 0):
        self.span, self.pieces = span, pieces_of(span, length)
        self.rounds = Rounds(self.pieces[:, 1], rows, seed)

    def _batch(self, chosen: np.ndarray) -> Batch:
        return laid_out(self.span, [self.pieces[i : i + 1] for i in chosen])


def laid_out(span: Span, rows: list[np.ndarray]) -> Batch:
    """A batch whose rows each hold some pieces, (start, number of positions), side by side, which the mask numbers;
    padding stands behind them."""
    width = max(int(row[:, 1].sum()) for row in rows)
    ids = torch.zeros((len(rows), width), dtype=torch.int64)
    targets, mask = torch.full_like(ids, NO_TARGET), torch.zeros_like(ids)
    for row, pieces in enumerate(rows):
        at = 0
        for number, (start, size) in enumerate(pieces.tolist(), 1):
            piece, here = span.windows(np.asarray([start]), size), slice(at, at + size)
            ids[row, here], targets[row, here], mask[row, here] = piece.ids[0], piece.targets[0], number
            at += size
    if max(map(len, rows)) == 1:
        mask = mask.bool()
    return Batch(ids, targets, None if bool((mask == 1).all()) else mask)


def drawn(seed: int, *step: int) -> np.random.Generator:
    """Random numbers that the seed and the step decide."""
    return np.random.default_rng((seed, *step))

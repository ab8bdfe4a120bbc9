"""Prompt pairs: a clean text and a corrupted one that differ in a few tokens and stand token below token.

Only then can a value of one run be put at the same place of the other (activation patching).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..model.transformer import Transformer
from ..text import Tokenizer
from ..views.table import Table, columns_of
from .metrics import Metric
from .run import Run
from .trace import Trace, trace

_WIDTH = 8  # tokens of a drawing before and after the first misfit


@dataclass(frozen=True)
class Pair:
    """Two texts, and single tokens: `answers` are what should follow the clean one, `others` what should not (of the
    corrupted one usually the other way round)."""

    clean: str
    corrupted: str
    answers: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def metric(self, position: int = -1) -> Metric:
        """How much more probability the answers have together than the others; with one of each, their logits'
        difference. Raises ValueError for a pair without answers."""
        if not self.answers or not self.others:
            raise ValueError(f"this pair names no answers and others: {self.clean!r}")
        names, n = (*self.answers, *self.others), len(self.answers)
        if len(names) == 2:
            return Metric(f"logit of {names[0]!r} minus {names[1]!r}", _difference, (position,), names)

        def apart(logits: Tensor, ids: list[int]) -> Tensor:
            chances = logits[:, 0].softmax(-1)[:, ids]
            return chances[:, :n].sum(-1) - chances[:, n:].sum(-1)

        return Metric(f"probability of {n} answers minus {len(names) - n} others", apart, (position,), names)


def _difference(logits: Tensor, ids: list[int]) -> Tensor:
    return logits[:, 0, ids[0]] - logits[:, 0, ids[1]]


@dataclass(frozen=True, eq=False, repr=False)
class Pairs:
    """Pairs whose texts align, as rows of ids of one width, padded on the right where a pair is shorter.

    `mask` is 1 at tokens, the same for both; None where nothing is padded.
    """

    pairs: tuple[Pair, ...]
    clean: Int[Tensor, "N T"]
    corrupted: Int[Tensor, "N T"]
    mask: Int[Tensor, "N T"] | None
    tokenizer: Tokenizer

    @property
    def differ(self) -> Bool[Tensor, "N T"]:
        """Where the two texts of each pair have different tokens."""
        return self.clean != self.corrupted

    @property
    def first(self) -> list[int]:
        """The position of each pair's first different token: before it the runs are the same."""
        return self.differ.int().argmax(1).tolist()

    def traces(self, transformer: Transformer) -> tuple[Trace, Trace]:
        """The trace of all clean texts, and that of all corrupted ones, row for row and column for column."""
        ids = [each.to(transformer.W_U.device) for each in (self.clean, self.corrupted)]
        mask = None if self.mask is None else self.mask.to(transformer.W_U.device)
        one, other = (trace(transformer, each, mask, self.tokenizer) for each in ids)
        return one, other

    def measure(self, run: Run, position: int = -1) -> Float[Tensor, "N"]:
        """Each pair's own metric in its row of a trace of these pairs. Raises ValueError for pairs without answers."""
        found = []
        with torch.no_grad():
            for row, pair in enumerate(self.pairs):
                metric = pair.metric(position)
                found.append(metric.read(run, run.logits_at(row, metric.columns(run, row))[None]))
        return torch.cat(found)

    def table(self) -> Table:
        """Each pair: its length, and the tokens that differ."""
        rows = []
        lengths = [self.clean.shape[1]] * len(self.pairs) if self.mask is None else self.mask.sum(1).tolist()
        for at, (length, differ) in enumerate(zip(lengths, self.differ, strict=True)):
            where = differ.nonzero().flatten().tolist()
            words = (" ".join(self.tokenizer.labels(ids[at, where].tolist())) for ids in (self.clean, self.corrupted))
            rows.append((at, length, ", ".join(map(str, where)), *words, " ".join(self.pairs[at].answers)))
        return Table("pairs", ("pair", "tokens", "differ at", "clean", "corrupted", "answers"), tuple(rows))

    def __len__(self) -> int:
        return len(self.pairs)

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__


def _pair(given: Pair | tuple[str, str]) -> Pair:
    if isinstance(given, Pair):
        return given
    if not isinstance(given, list | tuple) or len(given) != 2 or not all(isinstance(text, str) for text in given):
        raise ValueError(f"a pair is two texts, the clean one and the corrupted one, got {given!r}")
    return Pair(*given)


def aligned(pairs: Sequence[Pair | tuple[str, str]], tokenizer: Tokenizer) -> Pairs:
    """Pairs of texts as rows of ids, checked: both texts of a pair have as many tokens, and some are different.

    Raises ValueError with a drawing of both rows of tokens and the first misfit.
    """
    every = tuple(_pair(each) for each in pairs)
    if not every:
        raise ValueError("there are no pairs: expected a list of (clean, corrupted) texts")
    rows = [(tokenizer.encode(pair.clean), tokenizer.encode(pair.corrupted)) for pair in every]
    for at, (one, other) in enumerate(rows):
        if len(one) != len(other):
            raise ValueError(_misfit(at, one, other, tokenizer))
        if one == other:
            raise ValueError(f"both texts of pair {at} are the same tokens: {every[at].clean!r}")
    width = max(len(one) for one, _ in rows)
    clean, corrupted = (torch.tensor([[*row[at], *[0] * (width - len(row[at]))] for row in rows]) for at in (0, 1))
    mask = torch.tensor([[1] * len(one) + [0] * (width - len(one)) for one, _ in rows])
    return Pairs(every, clean, corrupted, None if bool(mask.all()) else mask, tokenizer)


def _misfit(at: int, one: list[int], other: list[int], tokenizer: Tokenizer) -> str:
    """Both rows of tokens around the place from which they stand apart, token below token."""
    steps = SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    first = next(a for kind, a, end, b, stop in steps if kind != "equal" and end - a != stop - b)
    start = max(0, first - _WIDTH)
    rows = [tokenizer.labels(row[start : first + _WIDTH]) for row in (one, other)]
    sizes = [max(map(columns_of, column)) for column in zip_longest(*rows, fillvalue="")]
    lines = [
        " | ".join(cell + " " * (sizes[place] - columns_of(cell)) for place, cell in enumerate(row)) for row in rows
    ]
    mark = " " * sum(size + 3 for size in sizes[: first - start]) + "^"
    dots = "... | " if start else ""
    head = f"the texts of pair {at} do not align: {len(one)} tokens and {len(other)}, from token {first} on"
    drawn = [
        f"  clean      {dots}{lines[0]}",
        f"  corrupted  {dots}{lines[1]}",
        f"             {' ' * len(dots)}{mark}",
    ]
    return "\n".join([head, *(line.rstrip() for line in drawn), "Use words of as many tokens on both sides."])

"""A text as a SentencePiece model takes it: rewritten by its rules, extra blanks gone, and "▁" for the other blanks.
https://github.com/google/sentencepiece/blob/master/src/normalizer.cc
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from .charsmap import Charsmap

BLANK = "\N{LOWER ONE EIGHTH BLOCK}"  # "▁"
Offsets = list[tuple[int, int]]


@dataclass(frozen=True)
class Normalizer:
    """The rules of one model. `verbatim` are texts that no rule rewrites: those that users defined."""

    prefix: bool = True
    collapse: bool = False
    charsmap: Charsmap | None = None
    verbatim: tuple[str, ...] = field(default=(), repr=False)

    def __call__(self, text: str, prefix: bool) -> tuple[str, Offsets | None]:
        """The text for the model, with a blank before it if `prefix`, and for each of its characters the (start, end)
        of what it came from; None where every character stands for itself."""
        if self.charsmap is None and not self.collapse:
            return (BLANK if prefix and text else "") + text.replace(" ", BLANK), None
        return self._rewritten(text, prefix)

    def _rewritten(self, text: str, prefix: bool) -> tuple[str, Offsets]:
        written: list[str] = []
        places: Offsets = []
        after_blank, begun = self.collapse, False
        for start, end, chunk in self._chunks(text):
            if self.collapse and not begun and chunk == " ":
                continue
            if not begun and prefix:
                written.append(BLANK)
                places.append((start, start))
            begun = True
            kept = chunk.lstrip(" ") if after_blank else chunk
            written += kept.replace(" ", BLANK)
            places += [(start, end)] * len(kept)
            if kept:
                after_blank = self.collapse and kept.endswith(" ")
        if self.collapse:
            while written and written[-1] == BLANK:
                written.pop()
        return "".join(written), places[: len(written)]

    def _chunks(self, text: str) -> Iterator[tuple[int, int, str]]:
        """The parts of a text that are rewritten as one: start, end and what they become."""
        start = 0
        while start < len(text):
            kept = self._pattern.match(text, start) if self._pattern else None
            if kept is not None:
                end, chunk = kept.end(), kept.group()
            elif self.charsmap is not None:
                end, chunk = self.charsmap.longest(text, start)
            else:
                end, chunk = start + 1, text[start]
            yield start, end, chunk
            start = end

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        longest_first = sorted(self.verbatim, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

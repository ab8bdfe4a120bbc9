"""SentencePiece's BPE: of all neighbours that make a piece together, those whose piece has the best score are joined
first, of equal ones the leftmost, until none do.
https://github.com/google/sentencepiece/blob/master/src/bpe_model.cc

The `tokenizers` library does this quickly, but knows no equal scores. Where a text holds pieces with equal scores, as
the runs of blanks are in Llama's vocabulary, it is done here.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

import tokenizers
from tokenizers.models import BPE

from .errors import TextError, raised_as_text_error, shown
from .normalizer import BLANK, Offsets
from .pieces import Kind, Piece

# If no piece has a blank after another character, no piece reaches from one of these into the next.
WORDS = re.compile(f"{BLANK}+[^{BLANK}]*|[^{BLANK}]+")
BLANK_WITHIN = re.compile(f"[^{BLANK}]{BLANK}")
WHOLE = re.compile(r"(?s:.+)")
MANY = 64


class Merging:
    """A vocabulary's BPE, without its control tokens. What users defined is taken out before anything is joined."""

    def __init__(self, pieces: tuple[Piece, ...]):
        self._unknown = len(pieces)
        self._ids = {piece.text: id for id, piece in enumerate(pieces) if piece.kind in (Kind.NORMAL, Kind.UNDEFINED)}
        self._defined = {piece.text: id for id, piece in enumerate(pieces) if piece.kind == Kind.USER_DEFINED}
        longest_first = sorted(self._defined, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) if longest_first else r"(?!)")
        self._scores = {text: pieces[id].score for text, id in self._ids.items() if len(text) > 1}
        self._words = WHOLE if any(BLANK_WITHIN.search(text) for text in self._ids) else WORDS
        made = ways_to_make(pieces, self._ids)
        self._tied = tied({text: self._scores[text] for text in made})
        merges = [pair for text in sorted(made, key=self._scores.__getitem__, reverse=True) for pair in made[text]]
        self._library = library_of(self._ids, merges, self._unknown)

    def __call__(self, text: str) -> tuple[list[int], Offsets]:
        """The ids of a text that was made ready, and where they stand; ids beyond the vocabulary for unknown
        characters."""
        ids: list[int] = []
        spans: Offsets = []
        for start, end, defined in self._parts(text):
            part, places = ([defined], [(0, end - start)]) if defined is not None else self._joined(text[start:end])
            ids += part
            spans += [(start + left, start + right) for left, right in places]
        return ids, spans

    def _parts(self, text: str) -> Iterator[tuple[int, int, int | None]]:
        """Where to cut, and the ids of what users defined. Parts with equal scores are kept apart from others."""
        place = 0
        for match in self._pattern.finditer(text):
            yield from self._words_of(text, place, match.start())
            yield *match.span(), self._defined[match.group()]
            place = match.end()
        yield from self._words_of(text, place, len(text))

    def _words_of(self, text: str, start: int, end: int) -> Iterator[tuple[int, int, None]]:
        if not self._holds_ties(text[start:end]):
            if start < end:
                yield start, end, None
            return
        plain = start
        for match in self._words.finditer(text, start, end):
            if self._holds_ties(match.group()):
                if plain < match.start():
                    yield plain, match.start(), None
                yield *match.span(), None
                plain = match.end()
        if plain < end:
            yield plain, end, None

    def _holds_ties(self, text: str) -> bool:
        """Whether pieces with equal scores may be in the text; with many such, it is not looked for each of them."""
        return len(self._tied) > MANY or any(piece in text for piece in self._tied)

    def _joined(self, text: str) -> tuple[list[int], Offsets]:
        if self._holds_ties(text):
            spans = joined(text, self._scores)
            return [self._ids.get(text[start:end], self._unknown) for start, end in spans], spans
        with raised_as_text_error("this text"):
            encoding = self._library.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets


def ways_to_make(pieces: tuple[Piece, ...], ids: Mapping[str, int]) -> dict[str, list[tuple[str, str]]]:
    """The pairs that make each piece. Characters that are no pieces themselves are joined too."""
    made = {}
    for piece in pieces:
        cuts = [(piece.text[:place], piece.text[place:]) for place in range(1, len(piece.text))]
        pairs = [(left, right) for left, right in cuts if all(half in ids or len(half) == 1 for half in (left, right))]
        if pairs and piece.kind == Kind.UNUSED:
            raise TextError(f"piece {shown(piece.text)} is unused, but others make it, which cannot be followed here")
        if pairs and piece.text in ids:
            made[piece.text] = pairs
    return made


def tied(scores: Mapping[str, float]) -> list[str]:
    """The pieces whose score another has too, without those that hold another one of them; of many only some."""
    numbers = Counter(scores.values())
    found = sorted((text for text, score in scores.items() if numbers[score] > 1), key=len)
    shortest: list[str] = []
    for text in found:
        if len(shortest) > MANY:
            break
        if not any(piece in text for piece in shortest):
            shortest.append(text)
    return shortest


def library_of(ids: Mapping[str, int], merges: list[tuple[str, str]], unknown: int) -> tokenizers.Tokenizer:
    """The library's BPE. No text made ready holds a blank, which here stands for what is unknown."""
    missing = sorted({character for pair in merges for half in pair for character in half} - ids.keys())
    vocabulary = {**ids, " ": unknown} | {character: unknown + 1 + n for n, character in enumerate(missing)}
    with raised_as_text_error("this vocabulary"):
        return tokenizers.Tokenizer(BPE(vocabulary, merges, unk_token=" ", fuse_unk=False))


def joined(text: str, scores: Mapping[str, float]) -> Offsets:
    """Where the pieces of a text stand, by the scores of pieces that are made of others."""
    ends = list(range(1, len(text) + 1))  # of the piece that begins at each character; 0 where none does
    before = list(range(-1, len(text) - 1))  # where the piece before begins

    def pair(left: int) -> tuple[float, int, int] | None:
        end = ends[ends[left]] if ends[left] < len(text) else 0
        score = scores.get(text[left:end])
        return None if score is None else (-score, left, end)

    agenda = [found for found in map(pair, range(len(text) - 1)) if found is not None]
    heapify(agenda)
    while agenda:
        entry = heappop(agenda)
        left = entry[1]
        if not ends[left] or pair(left) != entry:
            continue
        middle, end = ends[left], entry[2]
        ends[left], ends[middle] = end, 0
        if end < len(text):
            before[end] = left
        for start in (before[left], left):
            found = pair(start) if start >= 0 else None
            if found is not None:
                heappush(agenda, found)
    return [(start, end) for start, end in enumerate(ends) if end]

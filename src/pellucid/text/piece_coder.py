"""Text to ids by a SentencePiece vocabulary.

Control tokens are taken out first; the text between is made ready by SentencePiece's own rules, cut by BPE or Unigram,
and what is no piece then becomes bytes, or the unknown token.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import groupby

from .coder import Coder, Encoded
from .merging import Merging
from .normalizer import Offsets
from .pieces import CONTROLS, Kind, PieceModel
from .scoring import Scoring
from .spelling import PieceSpelling

NOTHING = re.compile(r"(?!)")


def pattern_of(texts: Iterable[str]) -> re.Pattern[str]:
    """What finds any of the texts, the longest first."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else NOTHING


def parts_of(text: str, pattern: re.Pattern[str], ids: Mapping[str, int]) -> Iterator[tuple[int, int, int | None]]:
    """Where text stands, and what the pattern finds, with the ids of the latter."""
    place = 0
    for match in pattern.finditer(text):
        if match.start() > place:
            yield place, match.start(), None
        yield *match.span(), ids[match.group()]
        place = match.end()
    if place < len(text):
        yield place, len(text), None


class PieceCoder(Coder):
    """A SentencePiece vocabulary."""

    def __init__(self, model: PieceModel):
        self._model = model
        pieces = model.pieces
        self.controls = {id: piece.text for id, piece in enumerate(pieces) if piece.kind in CONTROLS}
        self.added = self.controls
        rules = model.normalizer
        self.prefix_each = model.prefix_each
        self.spelling = PieceSpelling(rules.prefix, rules.collapse, bytes=bool(model.byte_ids))
        self._bytes, self._unknown = model.byte_ids, model.unknown_id
        self._cut = Merging(pieces) if model.method == "bpe" else Scoring(pieces)

    @property
    def model(self) -> PieceModel:
        """The vocabulary and its rules."""
        return self._model

    def _vocabulary(self) -> Mapping[str, int]:
        return {piece.text: id for id, piece in enumerate(self._model.pieces) if piece.kind != Kind.UNUSED}

    def token(self, id: int) -> str | None:
        pieces = self._model.pieces
        return pieces[id].text if id < len(pieces) and pieces[id].kind != Kind.UNUSED else None

    def check(self, text: str) -> None:
        pass  # what has no piece is written in bytes, or as the unknown token

    def encode(self, text: str, special: bool = False, prefix: bool = True) -> Encoded:
        ids: list[int] = []
        offsets = []
        for start, end, control in parts_of(text, self._pattern if special else NOTHING, self._control_ids):
            if control is not None:
                ids.append(control)
                offsets.append((start, end))
                continue
            part, places = self._plain(text[start:end], self.prefix_each if start else prefix)
            ids += part
            offsets += [(start + left, start + right) for left, right in places]
        return ids, offsets

    def spelled(self, text: str, prefix: bool = True) -> tuple[list[str], Offsets]:
        """The pieces of a text as they are written, and their offsets; unknown characters that stand together are one
        piece."""
        ids, offsets, ready, spans = self._cut_up(text, prefix)
        pieces: list[str] = []
        places: Offsets = []
        tokens = zip(ids, offsets, spans, strict=True)
        for unknown, run in groupby(tokens, lambda token: token[0] >= len(self._model.pieces)):
            found = list(run)
            for group in [found] if unknown else [[token] for token in found]:
                pieces.append(ready[group[0][2][0] : group[-1][2][1]])
                places.append((group[0][1][0], group[-1][1][1]))
        return pieces, places

    def _plain(self, text: str, prefix: bool) -> Encoded:
        """Ids and offsets of a text without control tokens."""
        ids, offsets, ready, spans = self._cut_up(text, prefix)
        known = not ids or max(ids) < len(self._model.pieces)
        return (ids, offsets) if known else self._known(ids, offsets, ready, spans)

    def _cut_up(self, text: str, prefix: bool) -> tuple[list[int], Offsets, str, Offsets]:
        """Ids, those of unknown characters beyond the vocabulary, and their offsets; the text as it was made ready, and
        where in that they stand."""
        ready, places = self._model.normalizer(text, prefix and self._model.normalizer.prefix)
        ids, spans = self._cut(ready)
        offsets = spans
        if places is not None:
            offsets = [(places[start][0], places[end - 1][1]) for start, end in spans]
        elif len(ready) > len(text):
            offsets = [(max(0, start - 1), end - 1) for start, end in spans]
        return ids, offsets, ready, spans

    def _known(self, ids: list[int], offsets: Offsets, ready: str, spans: Offsets) -> Encoded:
        """The ids with those of bytes, or of the unknown token, for what is no piece. `spans`: where in `ready`."""
        out: list[int] = []
        places: Offsets = []
        tokens = zip(ids, offsets, spans, strict=True)
        for unknown, run in groupby(tokens, lambda token: token[0] >= len(self._model.pieces)):
            group = list(run)
            if not unknown:
                out += [id for id, _, _ in group]
                places += [place for _, place, _ in group]
            elif not self._bytes:
                out.append(self._unknown_id)
                places.append((group[0][1][0], group[-1][1][1]))
            else:
                for _, place, (start, end) in group:
                    octets = ready[start:end].encode()
                    out += [self._bytes[byte] for byte in octets]
                    places += [place] * len(octets)
        return out, places

    @cached_property
    def _control_ids(self) -> dict[str, int]:
        return {text: id for id, text in self.controls.items()}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return pattern_of(self._control_ids)

    @property
    def _unknown_id(self) -> int:
        assert self._unknown is not None  # checked with the vocabulary
        return self._unknown

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._model,)

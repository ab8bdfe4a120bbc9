"""A SentencePiece vocabulary, whatever kind of file it comes from. https://github.com/google/sentencepiece"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from math import isfinite
from typing import Literal, NamedTuple

from tokenizers import AddedToken

from .errors import TextError, one_line, shown
from .library import MOST_TOKENS
from .normalizer import Normalizer

MOST_CHARACTERS = 1 << 8  # of a piece; SentencePiece makes none of more than 16 unless it is asked to
BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class Kind(IntEnum):
    """What a piece is for; GGUF files have the same numbers."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


CONTROLS = frozenset({Kind.CONTROL, Kind.UNKNOWN})


class Piece(NamedTuple):
    """A piece as the vocabulary writes it, with "▁" for blanks; the higher the score, the sooner it is taken."""

    text: str
    score: float
    kind: Kind


@dataclass(frozen=True)
class PieceModel:
    """A vocabulary and how it is used: `pieces` in the order of their ids.

    `prefix_each`: the blank that is put before a text is put after each control token too.
    """

    pieces: tuple[Piece, ...]
    method: Literal["bpe", "unigram"]
    normalizer: Normalizer
    prefix_each: bool = True

    def __post_init__(self) -> None:
        if not 0 < len(self.pieces) <= MOST_TOKENS:
            raise TextError(f"expected a vocabulary of 1 to {MOST_TOKENS} pieces, got {len(self.pieces)}")
        seen: set[str] = set()
        for id, piece in enumerate(self.pieces):
            if not piece.text or not isfinite(piece.score):
                raise TextError(f"piece {id}, {shown(piece.text)}: expected a text and a finite score: {piece.score}")
            if len(piece.text) > MOST_CHARACTERS:
                raise TextError(f"piece {id} has {len(piece.text)} characters, at most {MOST_CHARACTERS} are read")
            if piece.text in seen and piece.kind != Kind.UNUSED:
                raise TextError(f"piece {id}, {shown(piece.text)}, is there twice")
            if piece.kind == Kind.BYTE and BYTE.fullmatch(piece.text) is None:
                raise TextError(f"piece {id} is a byte, so its text must be such as <0x0A>, but is {shown(piece.text)}")
            seen.add(piece.text)
        n_bytes = len(self.byte_ids)
        if n_bytes not in (0, 256):
            raise TextError(f"expected a piece for each of the 256 bytes, or for none, but {n_bytes} have one")
        if n_bytes == 0 and self.unknown_id is None:
            raise TextError("the vocabulary has neither pieces for bytes nor one for unknown characters")

    @property
    def byte_ids(self) -> dict[int, int]:
        """The ids of bytes, by byte."""
        return {int(piece.text[3:5], 16): id for id, piece in enumerate(self.pieces) if piece.kind == Kind.BYTE}

    @property
    def unknown_id(self) -> int | None:
        return next((id for id, piece in enumerate(self.pieces) if piece.kind == Kind.UNKNOWN), None)

    def find(self, text: str) -> int | None:
        """The id of a piece."""
        return next((id for id, piece in enumerate(self.pieces) if piece.text == text), None)

    def with_tokens(self, tokens: Mapping[int, AddedToken], where: str) -> "PieceModel":
        """The vocabulary with the tokens that stand beside it, by id: new ones, and what known ones are for."""
        pieces = list(self.pieces)
        for id, token in sorted(tokens.items()):
            if token.single_word or token.lstrip or token.rstrip:
                raise TextError(f"{where}: token {shown(token.content)} takes blanks in, which cannot be followed here")
            kind = Kind.CONTROL if token.special else Kind.USER_DEFINED
            if id == len(pieces):
                pieces.append(Piece(token.content, 0.0, kind))
            elif id > len(pieces) or pieces[id].text != token.content:
                found = f"is {shown(pieces[id].text)}" if id < len(pieces) else f"would leave {len(pieces)} without one"
                raise TextError(f"{where}: token {shown(token.content)} is given id {one_line(id, 20)}, which {found}")
            elif pieces[id].kind == Kind.NORMAL:
                pieces[id] = pieces[id]._replace(kind=kind)
        return self.with_pieces(pieces)

    def with_controls(self, texts: Iterable[str]) -> "PieceModel":
        """The vocabulary with these made control tokens, single characters not."""
        wanted = {text for text in texts if len(text) > 1}
        marked = [
            piece._replace(kind=Kind.CONTROL)
            if piece.text in wanted and piece.kind in (Kind.NORMAL, Kind.USER_DEFINED)
            else piece
            for piece in self.pieces
        ]
        return self.with_pieces(marked)

    def with_pieces(self, pieces: Iterable[Piece]) -> "PieceModel":
        """The vocabulary with other pieces; what users defined is left as it is by the normalizer."""
        pieces = tuple(pieces)
        defined = tuple(piece.text for piece in pieces if piece.kind == Kind.USER_DEFINED)
        return replace(self, pieces=pieces, normalizer=replace(self.normalizer, verbatim=defined))

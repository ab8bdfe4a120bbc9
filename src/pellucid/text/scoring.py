"""SentencePiece's Unigram."""

import tokenizers
from tokenizers.models import Unigram

from .errors import TextError, raised_as_text_error
from .normalizer import Offsets
from .pieces import Kind, Piece

NORMAL = frozenset({Kind.NORMAL, Kind.UNDEFINED})
FOUND = NORMAL | {Kind.USER_DEFINED}  # in text
TINY = 2.0**-126  # SentencePiece's lower bound for the best score


class Scoring:
    """SentencePiece's Unigram: the pieces whose scores add up to the most. Done by the `tokenizers` library.
    https://github.com/google/sentencepiece/blob/master/src/unigram_model.cc

    A text made ready holds no blank, so a piece that must not be found (of control tokens, bytes, unused ones) is given
    to the library under a name that holds one.
    """

    def __init__(self, pieces: tuple[Piece, ...]):
        names = [piece.text if piece.kind in FOUND else f" {id}" for id, piece in enumerate(pieces)]
        normal = [piece.score for piece in pieces if piece.kind in NORMAL]
        if not normal:
            raise TextError("the vocabulary has no normal pieces")
        best = max(TINY, *normal)

        def score_of(piece: Piece) -> float:
            if piece.kind == Kind.USER_DEFINED:
                return len(piece.text.encode()) * best - 0.1  # SentencePiece's bonus, so that it is always taken
            # The worst score decides what an unknown character costs: only those of normal pieces count.
            return piece.score if piece.kind in NORMAL else best

        scores = [*map(score_of, pieces), best]
        with raised_as_text_error("this vocabulary"):
            model = Unigram(list(zip([*names, " "], scores, strict=True)), len(pieces), False)
            self._library = tokenizers.Tokenizer(model)

    def __call__(self, text: str) -> tuple[list[int], Offsets]:
        """The ids of a text that was made ready, and where they stand; ids beyond the vocabulary for unknown
        characters."""
        with raised_as_text_error("this text"):
            encoding = self._library.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

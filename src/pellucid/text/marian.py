"""Marian's vocabularies: SentencePiece cuts the text, and vocab.json, of source and target together, numbers its
pieces. https://huggingface.co/docs/transformers/model_doc/marian
"""

import re
from collections.abc import Mapping

from .coder import Coder, Encoded
from .errors import TextError
from .normalizer import Offsets
from .piece_coder import NOTHING, PieceCoder, parts_of, pattern_of
from .pieces import PieceModel
from .spelling import PieceSpelling

UNKNOWN = "<unk>"
CONTROLS = ("</s>", UNKNOWN, "<pad>")
LANGUAGE = re.compile(r">>[^<>]+<<")  # which language to translate into, before the text


class MarianCoder(Coder):
    """The source's cutting with the common numbering. What is in no vocabulary is <unk>, and cannot be read back."""

    def __init__(self, model: PieceModel, vocabulary: Mapping[str, int], where: str):
        missing = next((text for text in CONTROLS if text not in vocabulary), None)
        if missing is not None:
            raise TextError(f"{where}: vocab.json: expected the token {missing}")
        self._model, self._numbers, self._where = model, dict(vocabulary), where
        self._source = PieceCoder(model)
        self._tokens = {id: text for text, id in vocabulary.items()}
        self.controls = {id: text for text, id in vocabulary.items() if text in CONTROLS or LANGUAGE.fullmatch(text)}
        self.added = self.controls
        self.spelling = PieceSpelling(model.normalizer.prefix, model.normalizer.collapse, bytes=False)
        self._pattern = pattern_of(self.controls.values())

    def _vocabulary(self) -> Mapping[str, int]:
        return self._numbers

    def token(self, id: int) -> str | None:
        return self._tokens.get(id)

    def check(self, text: str) -> None:
        pass  # what has no piece becomes the unknown token

    def encode(self, text: str, special: bool = False, prefix: bool = True) -> Encoded:
        ids: list[int] = []
        offsets: Offsets = []
        unknown = self._numbers[UNKNOWN]
        for start, end, control in parts_of(text, self._pattern if special else NOTHING, self._numbers):
            if control is not None:
                ids.append(control)
                offsets.append((start, end))
                continue
            pieces, places = self._source.spelled(text[start:end], prefix or start > 0)
            found = [self._numbers.get(piece, unknown) for piece in pieces]
            # The numbering holds the control tokens too, which no plain text may become.
            ids += [unknown if id in self.controls else id for id in found]
            offsets += [(start + left, start + right) for left, right in places]
        return ids, offsets

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._model, self._numbers, self._where)

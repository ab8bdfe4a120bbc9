"""Text to ids by the `tokenizers` library's own rules, as a tokenizer.json sets them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise

import tokenizers
from tokenizers.models import WordPiece as WordPieceModel

from .characters import check_writable
from .errors import raised_as_text_error
from .library import (
    absent_bytes,
    is_byte_level,
    parts_of_type,
    state_of,
    with_control_tokens,
    without_prefix,
    without_surroundings,
)
from .normalizer import BLANK, Offsets
from .spelling import ByteLevel, Other, PieceSpelling, Spelling, WordPiece

LONG = 1 << 16  # characters
Encoded = tuple[list[int], Offsets]


class Coder(ABC):
    """A vocabulary, and how text becomes its ids; nothing is put around a text. It never changes."""

    spelling: Spelling
    controls: Mapping[int, str]  # the texts of control tokens by id
    added: Mapping[int, str]  # those of all tokens that stand for their own text, whatever the spelling
    prefix_each: bool = True  # a blank that is put before a text is put after control tokens too

    @cached_property
    def vocabulary(self) -> Mapping[str, int]:
        """The id of each token that has a text."""
        return self._vocabulary()

    @abstractmethod
    def _vocabulary(self) -> Mapping[str, int]: ...

    @abstractmethod
    def token(self, id: int) -> str | None:
        """The token as the vocabulary writes it, None where there is none."""

    def named(self, text: str) -> int | None:
        """The id of a token that is given by name rather than as text: a control token, or a piece of a word."""
        return next((id for id, control in self.controls.items() if control == text), None)

    @abstractmethod
    def check(self, text: str) -> None:
        """Raise TextError if the vocabulary has no tokens for this text."""

    @abstractmethod
    def encode(self, text: str, special: bool = False, prefix: bool = True) -> Encoded:
        """Ids and their offsets. `special`: control tokens in the text are found; `prefix`: the text begins here, so
        that a blank is put before it if that is the tokenizer's rule."""

    def ids(self, text: str, special: bool) -> list[int]:
        """The ids alone."""
        return self.encode(text, special)[0]


class LibraryCoder(Coder):
    """Whatever the library can read."""

    def __init__(self, library: tokenizers.Tokenizer):
        self._plain = without_surroundings(library)
        self._finding = with_control_tokens(self._plain)
        added = library.get_added_tokens_decoder()
        self.added = {id: token.content for id, token in added.items()}
        self.controls = {id: token.content for id, token in added.items() if token.special}
        self.spelling = spelling_of(library)
        metaspaces = parts_of_type(state_of(library.pre_tokenizer), "Metaspace")
        self.prefix_each = all(part["prepend_scheme"] != "first" for part in metaspaces)
        self._absent = absent_bytes(library) if isinstance(self.spelling, ByteLevel) else b""

    def _vocabulary(self) -> Mapping[str, int]:
        return self._plain.get_vocab()

    def token(self, id: int) -> str | None:
        return self._plain.id_to_token(id)

    def named(self, text: str) -> int | None:
        goes_on = isinstance(self.spelling, WordPiece) and text.startswith(self.spelling.prefix)
        return self.vocabulary.get(text) if goes_on else super().named(text)

    def check(self, text: str) -> None:
        check_writable(text, self._absent)

    def encode(self, text: str, special: bool = False, prefix: bool = True) -> Encoded:
        library = self._plain if prefix else self._inner
        if special:
            library = self._finding
        with raised_as_text_error("this text"):
            encoding = library.encode(text, add_special_tokens=False)
        ids, offsets = encoding.ids, encoding.offsets
        if special or self.controls.keys().isdisjoint(ids):
            return ids, offsets
        # Some models look whole words up, and so may find a control token that the library did not look for.
        tokens = zip(ids, offsets, strict=True)
        cuts = [
            start + 1 for id, (start, end) in tokens if end - start > 1 and self.controls.get(id) == text[start:end]
        ]
        if not cuts:
            return ids, offsets
        ids, offsets = [], []
        for start, end in pairwise([0, *cuts, len(text)]):
            part, places = self.encode(text[start:end], prefix=prefix and start == 0)
            ids += part
            offsets += [(start + left, start + right) for left, right in places]
        return ids, offsets

    def ids(self, text: str, special: bool) -> list[int]:
        if len(text) < LONG:
            return self.encode(text, special)[0]
        # Takes half the time, but keeps no offsets.
        with raised_as_text_error("this text"):
            library = self._finding if special else self._plain
            ids = library.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids if special or self.controls.keys().isdisjoint(ids) else self.encode(text)[0]

    @cached_property
    def _inner(self) -> tokenizers.Tokenizer:
        return without_prefix(self._plain)

    @property
    def source(self) -> str:
        """The library's own JSON of it, in which nothing is put around a text."""
        return self._plain.to_str()

    def __reduce__(self) -> tuple[object, ...]:
        return library_coder, (type(self), self.source)


def library_coder(kind: type[LibraryCoder], source: str) -> LibraryCoder:
    return kind(tokenizers.Tokenizer.from_str(source))


def spelling_of(library: tokenizers.Tokenizer) -> Spelling:
    """How a library's tokens make up a text."""
    if is_byte_level(library):
        return ByteLevel()
    decoder, state = library.decoder, state_of(library.decoder)
    if isinstance(library.model, WordPieceModel) and state.get("type") == "WordPiece":
        return WordPiece(str(state["prefix"]), decoder)
    metaspaces = [part for part in parts_of_type(state, "Metaspace") if part["replacement"] == BLANK]
    blanks = [part for part in parts_of_type(state, "Replace") if part["pattern"] == {"String": BLANK}]
    if metaspaces or blanks:
        strips = any(part["content"] == " " and part["start"] for part in parts_of_type(state, "Strip"))
        prefix = strips or any(part["prepend_scheme"] != "never" for part in metaspaces)
        return PieceSpelling(prefix, bytes=bool(parts_of_type(state, "ByteFallback")))
    return Other(" ".join if decoder is None else decoder.decode)

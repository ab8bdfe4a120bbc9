"""Ids to text, one by one as they are generated."""

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final


class Decoder(ABC):
    """Turns ids into text as they come. The pieces that `push` gives and the one that `finish` gives make up exactly
    the text that `Tokenizer.decode` gives for all the ids at once."""

    @abstractmethod
    def push(self, id: int, /) -> str:
        """Take one id; give back the text that is certain by now. Raises TextError for an id without text."""

    @abstractmethod
    def finish(self) -> str:
        """The ids ended: give back what was held, half a character as U+FFFD. The decoder can then begin anew."""


@final
class ByteDecoder(Decoder):
    """For vocabularies whose tokens are bytes. Bytes are held, not text that ends in U+FFFD: a token that is U+FFFD has
    ended.

    `first` says what an id stands for where a text begins, and whether more of the text's beginning is to come.
    """

    def __init__(self, bytes_of: Callable[[int], bytes], first: Callable[[int], tuple[bytes, bool]] | None = None):
        self._bytes_of, self._first = bytes_of, first
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = first is None

    def push(self, id: int, /) -> str:
        if self._begun or self._first is None:
            return self._utf8.decode(self._bytes_of(id))
        token, more = self._first(id)
        self._begun = not more
        return self._utf8.decode(token)

    def finish(self) -> str:
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        self._begun = self._first is None
        return rest


@final
class WordDecoder(Decoder):
    """For vocabularies in which a token's text depends on whether it is the first: `text_of` gives it."""

    def __init__(self, text_of: Callable[[int, bool], str], continued: bool):
        self._text_of, self._continued = text_of, continued
        self._first = not continued

    def push(self, id: int, /) -> str:
        text = self._text_of(id, self._first)
        self._first = False
        return text

    def finish(self) -> str:
        self._first = not self._continued
        return ""


@final
class WindowDecoder(Decoder):
    """For vocabularies whose tokens read differently beside others: each is decoded together with the one before, and
    what the text grew by is given. Where it did not grow, both are kept for the next."""

    def __init__(self, decode: Callable[[list[int]], str]):
        self._decode = decode
        self._window: list[int] = []
        self._given = ""

    def push(self, id: int, /) -> str:
        text = self._decode([*self._window, id])
        if not text.startswith(self._given):
            self._window.append(id)
            return ""
        new = text[len(self._given) :]
        self._window = [id]
        self._given = self._decode(self._window)
        return new

    def finish(self) -> str:
        rest = self._decode(self._window)[len(self._given) :] if self._window else ""
        self._window, self._given = [], ""
        return rest

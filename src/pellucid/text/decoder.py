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
    """For byte-level vocabularies. Bytes are held, not text that ends in U+FFFD: a token that is U+FFFD has ended."""

    def __init__(self, bytes_of: Callable[[int], bytes]):
        self._bytes_of = bytes_of
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int, /) -> str:
        return self._utf8.decode(self._bytes_of(id))

    def finish(self) -> str:
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest


@final
class RereadingDecoder(Decoder):
    """For vocabularies whose tokens read differently among others: all ids so far are decoded, and what the text grew
    by is given, unless it ends in U+FFFD, which may be half a character."""

    def __init__(self, decode: Callable[[list[int]], str]):
        self._decode = decode
        self._ids: list[int] = []
        self._given = ""

    def push(self, id: int, /) -> str:
        ids = [*self._ids, id]
        text = self._decode(ids)
        self._ids = ids
        if text.endswith("\ufffd") or not text.startswith(self._given):
            return ""
        new, self._given = text[len(self._given) :], text
        return new

    def finish(self) -> str:
        rest = self._decode(self._ids)[len(self._given) :]
        self._ids, self._given = [], ""
        return rest

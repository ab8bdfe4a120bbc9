"""What the tokens of each kind of vocabulary stand for, and how they make up a text."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Container
from dataclasses import dataclass

from tokenizers.decoders import Decoder as LibraryDecoder

from .characters import byte_level_bytes, visible
from .decoder import ByteDecoder, Decoder, WindowDecoder, WordDecoder
from .errors import raised_as_text_error
from .normalizer import BLANK
from .pieces import BYTE


@dataclass(frozen=True)
class Tokens:
    """What a spelling asks of a tokenizer: of an id its bytes and its token, and which ids are control tokens."""

    bytes_of: Callable[[int], bytes]
    token_of: Callable[[int], str]
    controls: Container[int]


class Spelling(ABC):
    """One kind of vocabulary. Tokens that were added to it stand for their own text everywhere."""

    @abstractmethod
    def bytes_of(self, token: str) -> bytes:
        """What a token stands for, in bytes."""

    @abstractmethod
    def decoder(self, tokens: Tokens, continued: bool) -> Decoder:
        """A decoder for ids; `continued`: they go on with a text, rather than begin one."""

    def label(self, token: str) -> str:
        """One printable string for a token."""
        return visible(self.bytes_of(token))


@dataclass(frozen=True)
class ByteLevel(Spelling):
    """GPT-2's kind: a text is its tokens' bytes, one after the other."""

    def bytes_of(self, token: str) -> bytes:
        return byte_level_bytes(token)

    def decoder(self, tokens: Tokens, continued: bool) -> Decoder:
        return ByteDecoder(tokens.bytes_of)


@dataclass(frozen=True)
class PieceSpelling(Spelling):
    """SentencePiece's kind: "▁" is a blank, and a text is its tokens' bytes without the blank that was put before it.

    `prefix`: such a blank is put; `collapse`: no text begins with a blank; `bytes`: tokens such as <0x0A> are bytes.
    """

    prefix: bool
    collapse: bool = False
    bytes: bool = True

    def bytes_of(self, token: str) -> "bytes":
        byte = BYTE.fullmatch(token) if self.bytes else None
        return token.replace(BLANK, " ").encode() if byte is None else bytes([int(byte[1], 16)])

    def decoder(self, tokens: Tokens, continued: bool) -> Decoder:
        if continued or not (self.prefix or self.collapse):
            return ByteDecoder(tokens.bytes_of)

        def first(id: int) -> tuple[bytes, bool]:
            token = tokens.token_of(id)
            if id in tokens.controls or not token.startswith(BLANK):
                return tokens.bytes_of(id), id in tokens.controls
            rest = token.lstrip(BLANK) if self.collapse else token.removeprefix(BLANK)
            return self.bytes_of(rest), self.collapse and not rest

        return ByteDecoder(tokens.bytes_of, first)


@dataclass(frozen=True)
class WordPiece(Spelling):
    """BERT's kind: a token that goes on with a word begins with `prefix` ("##"), before others stands a blank.

    `library` knows how, and before which signs it leaves the blank out. Case, accents and blanks of the text that was
    encoded are lost, so that the text that comes back is not it.
    """

    prefix: str
    library: LibraryDecoder

    def bytes_of(self, token: str) -> bytes:
        return token.removeprefix(self.prefix).encode()

    def label(self, token: str) -> str:
        return visible(token.encode())

    def decoder(self, tokens: Tokens, continued: bool) -> Decoder:
        def text_of(id: int, first: bool) -> str:
            token = tokens.token_of(id)
            return self.library.decode([token] if first else ["", token])

        return WordDecoder(text_of, continued)


@dataclass(frozen=True)
class Other(Spelling):
    """Any other kind: the library decodes, and a token is shown as the vocabulary writes it."""

    library: Callable[[list[str]], str]

    def bytes_of(self, token: str) -> bytes:
        return token.encode()

    def decoder(self, tokens: Tokens, continued: bool) -> Decoder:
        def text_of(ids: list[int]) -> str:
            with raised_as_text_error("these ids"):
                return self.library([tokens.token_of(id) for id in ids])

        return WindowDecoder(text_of)

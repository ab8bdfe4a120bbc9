"""Characters and bytes: surrogates in strings, and the alphabet in which byte-level vocabularies are written."""

import re
from bisect import bisect_left

from .errors import TextError

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
MARKS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}


def byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary, as GPT-2 defined it.

    A byte that Latin-1 prints stands for itself; the others (blanks, controls) take the characters from U+0100 on, so
    that a vocabulary file holds no blank. https://github.com/openai/gpt-2/blob/master/src/encoder.py
    """
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTE_OF = byte_alphabet()
TO_LATIN = {ord(character): byte for character, byte in BYTE_OF.items()}


def byte_level_bytes(token: str) -> bytes:
    """The bytes that a token of a byte-level vocabulary stands for; one not in its alphabet stands for itself."""
    if all(character in BYTE_OF for character in token):
        return token.translate(TO_LATIN).encode("latin-1")
    return token.encode()


def sound(text: str) -> str:
    """A text without surrogates: a pair is joined to its character, a lone one becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def check_writable(text: str, absent: bytes) -> None:
    """Raise TextError if a character of the text has one of these bytes, for which a vocabulary has no token."""
    if not absent or set(absent).isdisjoint(text.encode()):
        return
    place = next(n for n, character in enumerate(text) if not set(absent).isdisjoint(character.encode()))
    raise TextError(
        f"this vocabulary has no tokens for the bytes of {text[place]!a}, character {place} of the text: take it "
        "out, or write another for it"
    )


def offsets_in(text: str, offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Offsets counted in `sound(text)`, counted in the text itself, where a pair of surrogates is two characters."""
    pairs = [match.start() - n for n, match in enumerate(PAIR.finditer(text))]
    if not pairs:
        return offsets
    return [(start + bisect_left(pairs, start), end + bisect_left(pairs, end)) for start, end in offsets]


def visible(token: bytes) -> str:
    """A token's bytes as one printable string: blanks are drawn, bytes that make no character shown as <0xE2>."""
    shown = "".join(map(visible_character, token.decode("utf-8", "surrogateescape")))
    return shown or "<empty>"


def visible_character(character: str) -> str:
    if "\udc80" <= character <= "\udcff":
        return f"<0x{ord(character) - 0xDC00:02X}>"
    if character.isprintable():
        return MARKS.get(character, character)
    return MARKS.get(character, f"<U+{ord(character):04X}>")

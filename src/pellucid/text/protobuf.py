"""The fields of a protobuf message, as far as SentencePiece's models need them.
https://protobuf.dev/programming-guides/encoding/
"""

import struct
from collections.abc import Iterator

from .errors import TextError

VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5
Value = int | bytes  # of numbers of fixed size too, the bytes


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Each field's number and value, in the order in which they stand. Raises TextError where the message ends early
    or is none."""
    place = 0
    while place < len(message):
        key, place = varint(message, place)
        number, kind = key >> 3, key & 7
        if number == 0 or kind not in (VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES):
            raise TextError(f"not a protobuf message: no field can begin at byte {place}")
        if kind == VARINT:
            value, place = varint(message, place)
            yield number, value
            continue
        size = {EIGHT_BYTES: 8, FOUR_BYTES: 4}.get(kind, 0)
        if kind == LENGTH:
            size, place = varint(message, place)
        if size > len(message) - place:
            raise TextError(f"field {number} at byte {place} has {size} bytes, but {len(message) - place} are left")
        yield number, message[place : place + size]
        place += size


def varint(message: bytes, place: int) -> tuple[int, int]:
    """The whole number that begins at a place, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise TextError(f"the message ends within a number, at byte {place}")
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, place
    raise TextError(f"not a protobuf message: a number before byte {place} has more than 64 bits")


def whole(value: Value, name: str) -> int:
    """A field's value as a signed whole number."""
    if not isinstance(value, int):
        raise TextError(f"{name}: expected a whole number")
    return value - (1 << 64) if value >= 1 << 63 else value


def octets(value: Value, name: str) -> bytes:
    if not isinstance(value, bytes):
        raise TextError(f"{name}: expected bytes, got a number")
    return value


def text(value: Value, name: str) -> str:
    try:
        return octets(value, name).decode("utf-8")
    except UnicodeDecodeError as error:
        raise TextError(f"{name}: expected UTF-8 text: {error.reason} at byte {error.start}") from error


def single(value: Value, name: str) -> float:
    """A field's value as a number in single precision."""
    if not isinstance(value, bytes) or len(value) != 4:
        raise TextError(f"{name}: expected a number of four bytes")
    return struct.unpack("<f", value)[0]

"""Numbers, strings and metadata values out of a GGUF header, none taken past the end of the file."""

import struct
from mmap import mmap
from pathlib import Path

from .errors import CheckpointError
from .files import shown

MAX_HEADER = 64 << 20  # bytes; a vocabulary of 256,000 tokens with its merges takes about a fifth
MAX_DEPTH = 4  # arrays within arrays

U32, U64 = struct.Struct("<I"), struct.Struct("<Q")

# the value types by number, and the code that struct has for each
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
BOOL, STRING, ARRAY = 7, 8, 9


class Cursor:
    """A place in a header that moves on as it reads. Raises CheckpointError."""

    def __init__(self, path: Path, memory: mmap, at: int):
        self.path = path
        self.memory = memory
        self.at = at
        self.end = min(len(memory), MAX_HEADER)

    def need(self, size: int, what: str) -> None:
        """Raise CheckpointError unless `size` more bytes of header are there."""
        if size > self.end - self.at:
            raise self._short(self.at, size, what)

    def _short(self, at: int, size: int, what: str) -> CheckpointError:
        limit = "the file ends" if self.end < MAX_HEADER else "the longest header allowed ends"
        return CheckpointError(
            f"{self.path}: {what} at byte {at} needs {size} bytes, but {limit} at byte {self.end}. "
            "The file is cut short or damaged: download it again"
        )

    def u32(self, what: str) -> int:
        self.need(4, what)
        self.at += 4
        return U32.unpack_from(self.memory, self.at - 4)[0]

    def u64(self, what: str) -> int:
        self.need(8, what)
        self.at += 8
        return U64.unpack_from(self.memory, self.at - 8)[0]

    def count(self, least: int, what: str) -> int:
        """A number of things that take at least `least` bytes each, which the rest of the file must hold."""
        number = self.u64(f"the number of {what}")
        self.need(number * least, f"a list of {number} {what}")
        return number

    def string(self, what: str) -> str:
        return self.strings(1, what)[0]

    def strings(self, number: int, what: str) -> list[str]:
        """`number` strings. Vocabularies are most of a header, so that this loop is most of the time to read one."""
        parts = []
        memory, end, at, length_at = self.memory, self.end, self.at, U64.unpack_from
        for _ in range(number):
            start = at + 8
            if start > end:
                raise self._short(at, 8, what)
            (length,) = length_at(memory, at)
            at = start + length
            if at > end:
                raise self._short(start, length, what)
            parts.append(memory[start:at])
        self.at = at
        try:
            return list(map(bytes.decode, parts))
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"{self.path}: {what}: {shown([error.object])} is not valid UTF-8. Download the file again"
            ) from error

    def metadata(self, number: int) -> dict[str, object]:
        entries: dict[str, object] = {}
        for _ in range(number):
            key = self.string("a metadata key")
            if key in entries:
                raise CheckpointError(f"{self.path}: metadata key {shown([key])} is given twice. Convert it again")
            entries[key] = self.value(f"metadata {shown([key])}")
        return entries

    def value(self, what: str) -> object:
        type_id = self.u32(f"the type of {what}")
        return self.array(what, 1) if type_id == ARRAY else self.values(type_id, 1, what)[0]

    def array(self, what: str, depth: int) -> list[object]:
        if depth > MAX_DEPTH:
            raise CheckpointError(f"{self.path}: {what}: expected at most {MAX_DEPTH} arrays within one another")
        type_id, number = self.u32(f"the type of {what}"), self.u64(f"the length of {what}")
        if type_id != ARRAY:
            return self.values(type_id, number, what)
        self.need(12 * number, what)
        return [self.array(what, depth + 1) for _ in range(number)]

    def values(self, type_id: int, number: int, what: str) -> list[object]:
        """`number` strings or numbers of one type."""
        if type_id == STRING:
            self.need(8 * number, what)
            return [*self.strings(number, what)]
        code = NUMBERS.get(type_id)
        if code is None:
            raise CheckpointError(f"{self.path}: {what}: expected a value type from 0 to 12, got {type_id}")
        size = number * struct.calcsize("<" + code)
        self.need(size, what)
        if type_id == BOOL and self.memory[self.at : self.at + size].strip(b"\0\1"):
            raise CheckpointError(f"{self.path}: {what}: expected truth values of 0 or 1. Download the file again")
        self.at += size
        return list(struct.unpack_from(f"<{number}{code}", self.memory, self.at - size))

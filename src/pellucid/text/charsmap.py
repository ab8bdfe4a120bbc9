"""The rewriting rules of a SentencePiece model (`precompiled_charsmap`), as NFKC's.

A block of bytes: the size of a trie, the trie as a double array of 32-bit units, and the texts that its leaves point
to, each ended by a zero byte. In a double array, the unit of a node's child stands at the node's offset xor the child's
byte, and holds that byte as a label. https://github.com/s-yata/darts-clone
"""

import struct
from dataclasses import dataclass, field
from functools import cached_property

from .errors import TextError

LABEL = 0x8000_00FF
VALUE = 0x7FFF_FFFF
LEAF = 0x100


@dataclass(frozen=True)
class Charsmap:
    """The rules, read as they are needed."""

    source: bytes = field(repr=False)

    def __post_init__(self) -> None:
        size = int.from_bytes(self.source[:4], "little")
        if len(self.source) < 4 or size > len(self.source) - 4 or size % 4 or size == 0:
            raise TextError(f"precompiled_charsmap: {len(self.source)} bytes cannot hold a trie of {size} bytes")

    def longest(self, text: str, start: int) -> tuple[int, str]:
        """The end of the longest text from here on that a rule rewrites, and what it becomes; else one character."""
        found = start + 1, text[start]
        unit = self._unit(0)
        node = self._offset(unit)
        for place in range(start, len(text)):
            for byte in text[place].encode():
                node ^= byte
                unit = self._unit(node)
                if unit & LABEL != byte:
                    return found
                node ^= self._offset(unit)
            if unit & LEAF:
                found = place + 1, self._written(self._unit(node) & VALUE)
        return found

    @cached_property
    def _trie(self) -> tuple[int, ...]:
        size = int.from_bytes(self.source[:4], "little")
        return struct.unpack(f"<{size // 4}I", self.source[4 : 4 + size])

    @cached_property
    def _texts(self) -> bytes:
        return self.source[4 * len(self._trie) + 4 :]

    def _unit(self, node: int) -> int:
        if node >= len(self._trie):
            raise TextError(f"precompiled_charsmap: the trie points to unit {node} of {len(self._trie)}")
        return self._trie[node]

    @staticmethod
    def _offset(unit: int) -> int:
        return (unit >> 10) << ((unit & 0x200) >> 6)

    def _written(self, place: int) -> str:
        end = self._texts.find(b"\0", place)
        try:
            if end < 0:
                raise ValueError("no end")
            return self._texts[place:end].decode("utf-8")
        except ValueError as error:
            raise TextError(f"precompiled_charsmap: no text at byte {place} of {len(self._texts)}") from error

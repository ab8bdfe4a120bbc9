"""Arrays as few bytes, for pages: 8 bits of a range, 16-bit floats, or the numbers as they are.

The bytes are: the length of the header (4 bytes, little-endian); the header, JSON in UTF-8, padded with spaces so that
what follows begins at a multiple of 8; then the arrays one after another, each at a multiple of 8. The header is
{"meta": anything, "arrays": [{"name", "kind", "shape", "start", "low", "high", "triangle", "error"}]}: `start` counts
from the end of the header, `low` and `high` are what the bytes 0 and 255 stand for (kind "uint8"), and `error` is how
far a number may be from what it was. Of a "triangle" only the entries (..., t, s) with s <= t are there, row by row.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["uint8", "float16", "float32", "int32"]
_ALIGNED = 8


@dataclass(frozen=True, eq=False)
class Array:
    """One array as bytes: of which kind, its shape, its range, and the error of packing."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    data: bytes
    low: float = 0.0
    high: float = 0.0
    triangle: bool = False
    error: float = 0.0

    def header(self, start: int) -> dict[str, Any]:
        """All but the bytes."""
        return {**{name: value for name, value in vars(self).items() if name != "data"}, "start": start}


@dataclass(frozen=True, eq=False)
class Packed:
    """Plain data with arrays beside it."""

    meta: dict[str, Any]
    arrays: tuple[Array, ...]

    def to_bytes(self) -> bytes:
        """The whole, as the head of this file describes it. Raises ValueError for meta that JSON cannot say."""
        headers, parts, start = [], [], 0
        for array in self.arrays:
            headers.append(array.header(start))
            parts.append(_padded(array.data))
            start += len(parts[-1])
        head = json.dumps({"meta": self.meta, "arrays": headers}, allow_nan=False).encode()
        head += b" " * (-(4 + len(head)) % _ALIGNED)
        return len(head).to_bytes(4, "little") + head + b"".join(parts)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % _ALIGNED)

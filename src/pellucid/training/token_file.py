"""Files of token ids: a header, the ids, and where each document ends, read through a memory map.

Little-endian throughout: a header of 64 bytes (magic, version, bytes of an id, size of the vocabulary, number of ids,
number of documents, the vocabulary's fingerprint, zeros), the ids, zeros up to a multiple of 8, and for each document
the number of ids up to its end.
"""

import os
import secrets
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..weights.files import check_regular, sync_folder

MAGIC = b"PELLUTOK"
VERSION = 1
HEADER = struct.Struct("<8sIIQQQ16s8x")
DTYPES = {2: "<u2", 4: "<u4"}  # by the bytes of an id
MOST_VOCABULARY = 1 << 32
NO_FINGERPRINT = bytes(16)


class TokenFileError(ValueError):
    """A token file cannot be read or written as asked: the message names the file, what was expected and what came."""


@dataclass(frozen=True)
class TokenFile:
    """An opened token file. `tokens` and `ends` are views of the file; `ends` rise to `len(tokens)`.

    `fingerprint` tells vocabularies apart (zeros: not given). That ids lie inside the vocabulary is checked when they
    are read, so that opening costs nothing.
    """

    path: Path
    vocab_size: int
    fingerprint: bytes
    tokens: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    def checked(self, ids: np.ndarray) -> np.ndarray:
        """Ids of this file as int64. Raises TokenFileError for one outside the vocabulary."""
        if ids.size and int(ids.max()) >= self.vocab_size:
            raise TokenFileError(
                f"{self.path}: holds id {int(ids.max())}, but its vocabulary has {self.vocab_size} ids: write it again"
            )
        return ids.astype(np.int64)


def open_tokens(path: str | os.PathLike[str]) -> TokenFile:
    """Open a token file; all that its header and its document ends say is checked. Raises TokenFileError."""
    path = Path(path)
    check_regular(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(HEADER.size)
    if len(start) < HEADER.size or not start.startswith(MAGIC):
        raise TokenFileError(f"{path}: not a token file, which begins with {MAGIC.decode()!r}: make one from text")
    _, version, width, vocab_size, count, documents, fingerprint = HEADER.unpack(start)
    if version != VERSION:
        raise TokenFileError(f"{path}: version {version} of the format, expected {VERSION}: make it from text again")
    if width not in DTYPES or not 0 < vocab_size <= 1 << (8 * width):
        raise TokenFileError(f"{path}: a vocabulary of {vocab_size} ids does not fit ids of {width} bytes (2 or 4)")
    ids_end = HEADER.size + _padded(count * width)
    if count == 0 or documents == 0 or size != ids_end + 8 * documents:
        raise TokenFileError(
            f"{path}: {count} ids and {documents} documents take {ids_end + 8 * documents} bytes, the file has {size}. "
            "It is cut short or damaged: make it from text again"
        )
    tokens = np.memmap(path, DTYPES[width], "r", HEADER.size, (count,))
    ends = np.memmap(path, "<u8", "r", ids_end, (documents,))
    if int(ends[-1]) != count or ends[0] == 0 or not bool((ends[1:] > ends[:-1]).all()):
        raise TokenFileError(f"{path}: the ends of its documents do not rise to {count}: make it from text again")
    return TokenFile(path, vocab_size, fingerprint, tokens, ends)


class TokenWriter:
    """Writes documents one after the other; see `writing`."""

    def __init__(self, file: BinaryIO, path: Path, vocab_size: int, fingerprint: bytes):
        self._file, self._path, self._vocab_size, self._fingerprint = file, path, vocab_size, fingerprint
        self._width = 2 if vocab_size <= 1 << 16 else 4
        self._count, self._ends = 0, []

    def add(self, ids: np.ndarray | Iterable[int]) -> None:
        """One more document; an empty one leaves no trace. Raises TokenFileError for an id outside the vocabulary."""
        ids = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), dtype=np.int64)
        if not ids.size:
            return
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self._vocab_size:
            wrong = low if low < 0 else high
            raise TokenFileError(f"{self._path}: id {wrong} lies outside the vocabulary of {self._vocab_size} ids")
        self._file.write(ids.astype(DTYPES[self._width]).tobytes())
        self._count += ids.size
        self._ends.append(self._count)

    def finish(self) -> None:
        if not self._count:
            raise TokenFileError(f"{self._path}: there is nothing to write: the text has no tokens")
        size = self._count * self._width
        self._file.write(bytes(_padded(size) - size))
        self._file.write(np.asarray(self._ends, dtype="<u8").tobytes())
        self._file.seek(0)
        counts = (self._vocab_size, self._count, len(self._ends))
        self._file.write(HEADER.pack(MAGIC, VERSION, self._width, *counts, self._fingerprint))


@contextmanager
def writing(
    path: str | os.PathLike[str], vocab_size: int, fingerprint: bytes = NO_FINGERPRINT
) -> Iterator[TokenWriter]:
    """A writer of documents whose file appears under `path` when all went well, and else not at all.

    Ids take 2 bytes where the vocabulary fits them, else 4. Raises TokenFileError.
    """
    path = Path(path)
    if not 0 < vocab_size <= MOST_VOCABULARY:
        raise TokenFileError(f"{path}: a vocabulary has 1 to {MOST_VOCABULARY} ids, got {vocab_size}")
    if not path.parent.is_dir():
        raise TokenFileError(f"{path}: its folder {path.parent} does not exist. Make it first")
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with aside.open("xb") as file:
            file.write(bytes(HEADER.size))
            writer = TokenWriter(file, path, vocab_size, fingerprint)
            yield writer
            writer.finish()
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _padded(size: int) -> int:
    return -(-size // 8) * 8

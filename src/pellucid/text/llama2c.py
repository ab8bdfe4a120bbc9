"""The vocabulary files of llama2.c, such as tok512.bin.

The length of the longest piece as int32; then each piece's score as float32, its length as int32, and its bytes; all
little-endian. Ids 0, 1 and 2 are the unknown piece, BOS and EOS; the next 256 are bytes.
https://github.com/karpathy/llama2.c/blob/master/tokenizer.py
"""

import struct
from pathlib import Path

from .errors import TextError
from .files import read_bytes
from .normalizer import BLANK, Normalizer
from .pieces import BYTE, Kind, Piece, PieceModel

FIRST = (("<unk>", Kind.UNKNOWN), ("<s>", Kind.CONTROL), ("</s>", Kind.CONTROL))
BOS, EOS = 1, 2


def read_llama2c(path: Path) -> PieceModel:
    """The vocabulary in a file of llama2.c. Raises TextError."""
    content = read_bytes(path)
    pieces: list[Piece] = []
    place = 4
    while place < len(content):
        score, size = struct.unpack_from("<fi", content, place) if len(content) - place >= 8 else (0.0, -1)
        place += 8
        if not 0 <= size <= len(content) - place:
            raise TextError(f"{path}: not a vocabulary of llama2.c: it ends within piece {len(pieces)}")
        pieces.append(piece_of(content[place : place + size], score, len(pieces), path))
        place += size
    longest = struct.unpack_from("<i", content)[0] if pieces else 0
    if len(pieces) < 259 or max(map(stored_size, pieces)) > longest:
        raise TextError(f"{path}: not a vocabulary of llama2.c: {len(pieces)} pieces, the longest said to be {longest}")
    try:
        return PieceModel(tuple(pieces), "bpe", Normalizer())
    except TextError as error:
        raise TextError(f"{path}: {error}") from error


def piece_of(content: bytes, score: float, id: int, path: Path) -> Piece:
    try:
        text = content.decode("utf-8").replace(" ", BLANK)
    except UnicodeDecodeError as error:
        raise TextError(f"{path}: not a vocabulary of llama2.c: piece {id} is no UTF-8 text") from error
    if id < len(FIRST):
        words, kind = FIRST[id]
        if text.strip("\n") != words:
            raise TextError(f"{path}: not a vocabulary of llama2.c: piece {id} is not {words}")
        return Piece(words, score, kind)
    return Piece(text, score, Kind.BYTE if id < 259 and BYTE.fullmatch(text) else Kind.NORMAL)


def stored_size(piece: Piece) -> int:
    return len(piece.text.replace(BLANK, " ").encode())

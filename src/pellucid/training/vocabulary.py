"""Tokenizers made from the text at hand: GPT-2's kind, byte-level BPE, or one token for each character."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import chain, count, islice
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from ..text import Tokenizer

END_OF_TEXT, MASK = "<|endoftext|>", "[MASK]"
BYTES = 256


def train_bpe(texts: Iterable[str], size: int, controls: Sequence[str] = ()) -> dict[str, bytes]:
    """The files of a byte-level BPE tokenizer (Sennrich et al. 2016; GPT-2) with at most `size` tokens: end of text,
    further control tokens, the 256 bytes, and merges in the order of their frequency.

    Raises ValueError for a size that leaves no room for the bytes.
    """
    controls = (END_OF_TEXT, *controls)
    least = BYTES + len(controls)
    if size < least:
        raise ValueError(f"a byte-level vocabulary needs {least} tokens for bytes and control tokens, got {size}")
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(controls),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    return _files(library)


def train_characters(texts: Iterable[str], controls: Sequence[str] = ()) -> dict[str, bytes]:
    """The files of a tokenizer with end of text, further control tokens, and one token for each character of the texts.

    Other characters are refused when a text is encoded. Raises ValueError if the texts hold none.
    """
    characters = sorted(set(chain.from_iterable(map(set, texts))))
    if not characters:
        raise ValueError("there are no characters to make a vocabulary of: the text is empty")
    controls = (END_OF_TEXT, *controls)
    vocabulary = {token: id for id, token in enumerate((*controls, *characters))}
    library = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=""))
    library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    library.decoder = decoders.Fuse()
    library.add_special_tokens([AddedToken(token, normalized=False) for token in controls])
    return _files(library)


def write_files(folder: Path, files: Mapping[str, bytes]) -> Tokenizer:
    """Put a tokenizer's files into a folder, and open it."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return Tokenizer.from_folder(folder)


def fingerprint(tokenizer: Tokenizer) -> bytes:
    """16 bytes that differ where two vocabularies give an id different texts."""
    digest = blake2b(digest_size=16)
    for id in _ids(tokenizer):
        text = tokenizer.bytes_of(id)
        digest.update(id.to_bytes(4, "little") + len(text).to_bytes(4, "little") + text)
    return digest.digest()


def ids_needed(tokenizer: Tokenizer) -> int:
    """The least number of logits in which each of a tokenizer's ids has one."""
    return 1 + max(_ids(tokenizer))


def _ids(tokenizer: Tokenizer) -> Iterator[int]:
    """Every id that has a text; there may be gaps between them."""
    return islice(filter(tokenizer.has_text, count()), tokenizer.vocab_size)


def _files(library: tokenizers.Tokenizer) -> dict[str, bytes]:
    names = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "tokenizer_class": "PreTrainedTokenizerFast"}
    if any(token.content == MASK for token in library.get_added_tokens_decoder().values()):
        names["mask_token"] = MASK
    return {
        "tokenizer.json": library.to_str(pretty=True).encode(),
        "tokenizer_config.json": json.dumps(names, indent=2).encode(),
    }

"""A tokenizer that is made on the spot: each byte is a token."""

from pathlib import Path

from pellucid.text import Tokenizer


def bytes_as_tokens(folder: Path) -> Tokenizer:
    """256 tokens, one a byte, in the order of their bytes' letters."""
    from tokenizers import Tokenizer as Raw
    from tokenizers import decoders, models, pre_tokenizers

    vocab = {letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    raw = Raw(models.BPE(vocab=vocab, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    raw.save(str(folder / "tokenizer.json"))
    return Tokenizer.from_json(folder / "tokenizer.json")

"""A small tokenizer: one token a character, for the tiny models of tests."""

import json

from pellucid.text import Tokenizer

CHARACTERS = "abcdefghijklmnopqrstuvwxyzĠ.,!?'0123456789<>|"


def letters(size: int = 50, end: bool = True) -> Tokenizer:
    """Ids below `size`: small letters, a blank, some signs, whole words of no meaning, and at last <|end|>."""
    pieces = [*CHARACTERS, *(f"zz{at}" for at in range(size - len(CHARACTERS) - 1))]
    vocabulary = {piece: id for id, piece in enumerate(pieces)} | {"<|end|>": size - 1}
    special = {"id": size - 1, "content": "<|end|>", "special": True}
    special |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    bytes_as_text = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return Tokenizer.from_json(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [special],
                "normalizer": None,
                "pre_tokenizer": bytes_as_text,
                "post_processor": None,
                "decoder": bytes_as_text,
                "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
            }
        )
    )

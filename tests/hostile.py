"""Tokens whose text would be code in a page, if it were not held as text."""

import json

from pellucid.text import Tokenizer

HOSTILE = (
    '"><img src=x onerror=alert(1)>',
    "a<b<c",
    "'",
    "\n",
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "-->",
    "</title><svg onload=alert(1)>",
    "' onmouseover='alert(1)",
    "&quot;&lt;",
    "{alert(1)}${alert(1)}",
    "\u2028",
    "javascript:alert(1)",
    "</iframe></style>",
)


def hostile(size: int = 50) -> Tokenizer:
    """A tokenizer whose first ids are HOSTILE, one token each; the others have words of no meaning."""
    bytes_as_text = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    pieces = ["".join(map(_character, text.encode())) for text in HOSTILE]
    pieces += [f"zz{at}" for at in range(size - len(pieces))]
    return Tokenizer.from_json(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [],
                "normalizer": None,
                "pre_tokenizer": bytes_as_text,
                "post_processor": None,
                "decoder": bytes_as_text,
                "model": {"type": "BPE", "vocab": {piece: id for id, piece in enumerate(pieces)}, "merges": []},
            }
        )
    )


def _character(byte: int) -> str:
    """The character that stands for a byte in a byte-level vocabulary."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return chr(byte) if byte in shown else chr(0x100 + [b for b in range(256) if b not in shown].index(byte))

"""The tokenizer that belongs to a model's files."""

from collections.abc import Mapping
from pathlib import Path

from .files import has
from .tokenizer import Tokenizer

FILES = ("tokenizer.json", "vocab.json", "encoder.json", "tokenizer.model", "vocab.txt")


def find_tokenizer(
    folder: Path | None = None, file: Path | None = None, metadata: Mapping[str, object] | None = None
) -> Tokenizer | None:
    """The tokenizer of GGUF `metadata`, of one `file`, or beside the weights in a `folder`; None where there is none.

    Raises TextError where the files are there and hold no tokenizer that is known.
    """
    if metadata is not None:
        return Tokenizer.from_gguf(metadata) if any(key.startswith("tokenizer.") for key in metadata) else None
    if file is not None:
        if file.suffix == ".json":
            return Tokenizer.from_json(file)
        return Tokenizer.from_sentencepiece(file) if ".model" in file.suffixes else Tokenizer.from_llama2c(file)
    if folder is not None and any(has(folder, name) for name in FILES):
        return Tokenizer.from_folder(folder)
    return None

"""`pellucid eval`: how well a model predicts a text."""

from collections.abc import Iterator
from typing import Annotated

import typer

from .options import Json, ModelName
from .progress import bars
from .talk import open_model, print_json, read_prompt

FILES, CHARACTERS = 16, 4096  # of the standard library, where no text is given

Texts = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TEXT]...", help="Text files, folders, .jsonl files; - is stdin; none: Python's sources."),
]
Length = Annotated[int, typer.Option("--length", metavar="N", help="Tokens of a window; 0: the context, at most 1024.")]
Stride = Annotated[int, typer.Option("--stride", metavar="N", help="Tokens it is moved on by; 0: half a window.")]


def eval(model: ModelName, texts: Texts = None, length: Length = 0, stride: Stride = 0, as_json: Json = False) -> None:
    """Measure how well a model predicts a text.

    Each file, and each line of a .jsonl file, is a text by itself. Every token but a text's first is scored once, in
    the latest window that brings it; each has at least length minus stride tokens before it, or all there are. Without
    a text, the first 4,096 characters of 16 files of the standard library are read.
    """
    read = list(_texts(texts or []))
    opened = open_model(model)
    from ..training.evaluation import evaluate, sizes

    assert opened.tokenizer is not None, "open_model refuses a model without words"
    length, stride = sizes(opened.config, length, stride)
    with bars() as task:
        advance = task("scoring", sum(map(len, read)))
        found = evaluate(opened.transformer, opened.tokenizer, read, length, stride, advance)
    if as_json:
        print_json({"model": opened.name, "texts": len(read), **found.to_json()})
    else:
        print(found)


def _texts(paths: list[str]) -> Iterator[str]:
    from ..training.documents import corpus_of, standard_library

    if "-" in paths:
        if paths != ["-"]:
            raise ValueError("stdin (-) is a text by itself: give it alone, or files")
        yield read_prompt("-", "the text")
        return
    for number, document in enumerate((corpus_of(paths) if paths else standard_library()).read()):
        if not paths and number == FILES:
            return
        yield document.text if paths else document.text[:CHARACTERS]

"""`pellucid tokenize`: text into a file of tokens."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Json
from .progress import bars
from .talk import print_json

if TYPE_CHECKING:
    from ..training.documents import Corpus

Output = Annotated[str, typer.Argument(metavar="OUTPUT", help="The token file to write.", show_default=False)]
Texts = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TEXT]...", help="Text files, folders, .jsonl files; none: Python's own sources."),
]
Words = Annotated[
    str, typer.Option("--tokenizer", metavar="NAME", help="characters or bpe, made of the text, or a model's own.")
]
Size = Annotated[int, typer.Option("--vocab-size", metavar="N", help="Tokens that bpe has at most.")]
Control = Annotated[
    list[str] | None,
    typer.Option("--control", metavar="TOKEN", help="A control token more, as [MASK]; may be repeated."),
]
Field = Annotated[str, typer.Option("--field", metavar="NAME", help="Where JSON lines and data sets hold the text.")]
Suffix = Annotated[
    list[str] | None, typer.Option("--suffix", metavar=".EXT", help="Files to take of folders; may be repeated.")
]
Dataset = Annotated[str, typer.Option("--dataset", metavar="NAME", help="A Hugging Face data set instead.")]
Split = Annotated[str, typer.Option("--split", metavar="NAME", help="Which part of the data set.")]
Jobs = Annotated[int, typer.Option("--jobs", metavar="N", help="Processes; 0: one for each core.")]


def tokenize(
    output: Output,
    texts: Texts = None,
    tokenizer: Words = "characters",
    vocab_size: Size = 1024,
    control: Control = None,
    field: Field = "text",
    suffix: Suffix = None,
    dataset: Dataset = "",
    split: Split = "train",
    jobs: Jobs = 0,
    as_json: Json = False,
) -> None:
    """Turn text into a file of tokens.

    A tokenizer made of the text is saved beside it. Each text file is a document, and each line of a .jsonl file; the
    end of text is put after each.
    """
    path = Path(output).expanduser()
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent}: no such folder. Make it first")
    if dataset and texts:
        raise ValueError("--dataset and text files are two sources: give one of them")
    from ..training.assembly import tokenizer_for
    from ..training.tokenizing import tokenize as write

    corpus = _corpus(texts or [], field, suffix or [], (dataset, split))
    words = tokenizer_for(tokenizer, corpus, path.parent, vocab_size, control or [])
    with bars() as task:
        file = write(path, words, corpus, jobs, task("tokenizing", corpus.size))
    found = {"path": str(path), "tokens": len(file), "documents": len(file.ends), "vocab_size": file.vocab_size}
    if as_json:
        print_json(found)
    else:
        print(f"{path}: {len(file):,} tokens in {len(file.ends):,} documents, of {file.vocab_size:,} kinds")


def _corpus(texts: list[str], field: str, suffix: list[str], dataset: tuple[str, str]) -> "Corpus":
    from ..training.documents import corpus_of, hub_dataset, standard_library

    if dataset[0]:
        return hub_dataset(*dataset, field)
    return corpus_of(texts, field, suffix) if texts else standard_library()

"""`pellucid neurons`: what single neurons write, and the texts that they are strongest on."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..views import Table
from .options import Json, ModelName
from .progress import bars
from .talk import as_text, open_model, print_json

if TYPE_CHECKING:
    from ..front import Model
    from ..inside.neurons import Neurons

ROW = 128  # tokens of a row, where the model has as many positions
PIECE = 100_000  # characters of a file that are cut into tokens at a time
Corpora = Annotated[
    list[Path] | None,
    typer.Option(
        "--corpus",
        metavar="TEXT",
        help="A text file, a folder or .jsonl file; may be repeated.",
        show_default=False,
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option("--folder", metavar="DIR", help="Keep what was read here, and go on there.", show_default=False),
]


def neurons(
    model: ModelName,
    neuron: Annotated[
        str, typer.Argument(metavar="LAYER.NEURON", help="One neuron, as 5.120.", show_default=False)
    ] = "",
    token: Annotated[
        str | None, typer.Option("--token", metavar="TEXT", help="The neurons that promote this token.")
    ] = None,
    corpus: Corpora = None,
    folder: Folder = None,
    k: Annotated[int, typer.Option("--k", metavar="K", help="How many tokens, texts or neurons to show.")] = 10,
    as_json: Json = False,
) -> None:
    """Say what neurons write, and what they are strongest on.

    Of one neuron: the tokens that it promotes and suppresses, and those whose embeddings it reads; with --token: the
    neurons that promote it. With a corpus, every neuron of every layer is followed over it in one pass, in rows of 128
    tokens, the first of which is not counted: then also the texts that a neuron is strongest on, and the neurons that
    are strongest on the token.
    """
    if k < 1:
        raise ValueError(f"--k must be at least 1, got {k}")
    if not (neuron or token is not None or corpus or folder):
        raise ValueError("name a neuron as LAYER.NEURON, or a token with --token TEXT, or texts with --corpus FILE")
    token = None if token is None else as_text(token, "--token")
    at = _place(neuron) if neuron else None
    opened = open_model(model, words=token is not None or bool(corpus))
    seen = _seen(opened, corpus, folder, k)
    tables = {**_written(opened, at, token, k), **({} if seen is None else _read(seen, at, token, k))}
    if as_json:
        scan = {} if seen is None else {"scan": seen.to_json()}
        print_json({"model": model, **scan, **{name: table.to_json() for name, table in tables.items()}})
        return
    print(*tables.values(), sep="\n\n")


def _place(text: str) -> tuple[int, int]:
    layer, _, number = text.partition(".")
    if not (layer.isdecimal() and number.isdecimal()):
        raise ValueError(f"a neuron is named by its layer and its number there, as 5.120; got {text!r}")
    return int(layer), int(number)


def _written(model: "Model", at: tuple[int, int] | None, token: str | None, k: int) -> dict[str, Table]:
    """What the weights alone say."""
    from ..inside.neuron_weights import promoted, promoting, reads

    found, words = {}, model.tokenizer
    if at is not None:
        found["promotes"] = promoted(model.transformer, *at, min(k, model.config.vocab_size), words)
        found["reads"] = reads(model.transformer, *at, min(k, model.config.vocab_size), words)
    if token is not None:
        found["promoting"] = promoting(model.transformer, token, k, tokenizer=words)
    return found


def _read(seen: "Neurons", at: tuple[int, int] | None, token: str | None, k: int) -> dict[str, Table]:
    """What the corpus says."""
    found = {}
    if at is not None:
        found["texts"] = seen.texts(*at, k=k)
        if seen.lowest is not None:
            found["lowest"] = seen.texts(*at, k=k, lowest=True)
    if token is not None:
        found["firing"] = seen.firing(token, k)
    return found or {"top": seen.top(k)}


def _seen(model: "Model", corpus: list[Path] | None, folder: Path | None, k: int) -> "Neurons | None":
    """The scan of the texts, or the one that a folder holds."""
    if not corpus and folder is None:
        return None
    from ..inside.neuron_scan import model_print, scan
    from ..inside.neuron_store import holds_scan
    from ..inside.neurons import Neurons, Scan

    kept = Neurons.load(folder, model.tokenizer) if folder is not None and (not corpus or holds_scan(folder)) else None
    if kept is not None and kept.model != model_print(model.transformer):
        raise ValueError(f"{folder} holds a scan of another model: choose another folder")
    if not corpus:
        return kept
    # The value of a gated neuron goes as far below 0 as above.
    settings = Scan(k=k, lowest=model.config.gated, skip=1) if kept is None else kept.settings
    rows = (row for path in corpus for row in _rows(model, path))
    with bars() as begin:
        told = begin("reading the corpus", None)
        return scan(model.transformer, rows, settings, model.tokenizer, folder, told)


def _rows(model: "Model", path: Path) -> Iterator[list[int]]:
    """A file's tokens in rows, document by document, with nothing added. Raises ValueError for what is no text."""
    length = min(ROW, model.config.context_length)
    assert model.tokenizer is not None, "opened with its words"
    for pieces in _documents(path):
        ids = list[int]()
        for text in pieces:
            ids += model.tokenizer.encode(text, bos=False)
            whole = len(ids) // length * length
            yield from (ids[at : at + length] for at in range(0, whole, length))
            ids = ids[whole:]
        if ids:
            yield ids


def _documents(path: Path) -> Iterator[Iterable[str]]:
    """A text file is one document, read some of it at a time; else as training reads files and folders."""
    if path.is_file() and path.suffix != ".jsonl":
        yield _pieces(path)
        return
    from ..training.documents import corpus_of

    yield from ([document.text] for document in corpus_of([path]).read())


def _pieces(path: Path) -> Iterator[str]:
    """A file's text, cut between lines, some of it at a time."""
    lines, size = list[str](), 0
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                lines.append(line)
                size += len(line)
                if size > PIECE:
                    yield "".join(lines)
                    lines, size = [], 0
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected text in UTF-8, got other bytes ({error.reason})") from error
    if lines:
        yield "".join(lines)

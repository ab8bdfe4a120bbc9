"""Texts to train on: files, folders, JSON lines, a data set of the hub, or the standard library's own sources."""

import json
import os
import sysconfig
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..weights.files import check_regular, shown

SUFFIXES = (".txt", ".md", ".rst", ".py", ".jsonl")
NOT_SOURCES = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


class Document(NamedTuple):
    """One text, and how many bytes of its source it takes, for a progress bar."""

    text: str
    size: int


Record = tuple[str, dict[str, Any], int]  # where it stands, the object of a JSON line, its bytes


@dataclass(frozen=True)
class Corpus:
    """Documents that can be read more than once, always in the same order; `size` in bytes, None if it is not known."""

    read: Callable[[], Iterator[Document]]
    size: int | None


def corpus_of(paths: Sequence[str | os.PathLike[str]], field: str = "text", suffixes: Sequence[str] = ()) -> Corpus:
    """The documents of files and folders, each text file one document, each line of a .jsonl file another.

    Of a folder every file is taken, at any depth and in order of its path, that ends in one of `suffixes` (if none are
    given, in .txt, .md, .rst, .py or .jsonl). `field` is where a JSON line holds its text. Raises ValueError for a path
    that is not there, a folder without such files, and, when it is read, for what is no text.
    """
    files = [file for path in paths for file in _files(Path(path).expanduser(), tuple(suffixes) or SUFFIXES)]

    def read() -> Iterator[Document]:
        for file in files:
            yield from _lines(file, field) if file.suffix == ".jsonl" else [_whole(file)]

    return Corpus(read, sum(file.stat().st_size for file in files))


def standard_library() -> Corpus:
    """The sources of the running Python's standard library, without its tests: some ten megabytes on any machine."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(file for file in root.rglob("*.py") if NOT_SOURCES.isdisjoint(file.relative_to(root).parts))
    if not files:
        raise ValueError(f"{root}: this Python comes without the sources of its standard library: give a text")

    def read() -> Iterator[Document]:
        for file in files:
            with tokenize.open(file) as source:  # decodes as the file's first lines say
                yield Document(source.read(), file.stat().st_size)

    return Corpus(read, sum(file.stat().st_size for file in files))


def hub_dataset(name: str, split: str = "train", field: str = "text") -> Corpus:
    """The texts of a Hugging Face data set, row by row. Raises ValueError without the `datasets` package."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ValueError("reading a Hugging Face data set needs the package datasets: pip install datasets") from error
    rows: Any = load_dataset(name, split=split)
    if field not in rows.column_names:
        raise ValueError(f"{name} has no column {field!r}; it has {', '.join(rows.column_names)}")
    return Corpus(lambda: (Document(str(row[field]), 0) for row in rows), None)


def records(paths: Sequence[str | os.PathLike[str]]) -> Iterator[Record]:
    """The object of each line of .jsonl files, and of those in folders. Raises ValueError for what is none."""
    for path in paths:
        for file in _files(Path(path).expanduser(), (".jsonl",)):
            yield from _records(file)


def size_of(paths: Sequence[str | os.PathLike[str]]) -> int:
    """How many bytes files and folders of .jsonl files have."""
    return sum(file.stat().st_size for path in paths for file in _files(Path(path).expanduser(), (".jsonl",)))


def texts(documents: Iterable[Document]) -> Iterator[str]:
    """The texts alone."""
    return (document.text for document in documents)


def _files(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    if not path.is_dir():
        check_regular(path)
        return [path]
    found = sorted(file for file in path.rglob("*") if file.suffix in suffixes and file.is_file())
    if not found:
        raise ValueError(f"{path}: this folder has no files that end in {', '.join(suffixes)}")
    return found


def _whole(file: Path) -> Document:
    data = file.read_bytes()
    return Document(_decoded(data, f"{file}"), len(data))


def _lines(file: Path, field: str) -> Iterator[Document]:
    for where, record, size in _records(file):
        if not isinstance(record.get(field), str):
            raise ValueError(f"{where}: expected an object with a text under {field!r}, got the keys {shown(record)}")
        yield Document(record[field], size)


def _records(file: Path) -> Iterator[Record]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{file}, line {number}"
            try:
                record = json.loads(_decoded(line, where))
            except (json.JSONDecodeError, RecursionError) as error:
                raise ValueError(f"{where}: not valid JSON ({error})") from error
            if not isinstance(record, dict):
                raise ValueError(f"{where}: expected an object, got {type(record).__name__}")
            yield where, record, len(line)


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8 text (byte {error.start} is {data[error.start]:#04x})") from error

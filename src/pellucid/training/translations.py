"""Texts and their translations: JSON lines with both, or two files whose lines belong together."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from ..text import Tokenizer
from ..weights.files import check_regular, shown
from .documents import Corpus, Document, records, size_of
from .examples import Example
from .tokenizing import encoder

PairOfTexts = tuple[str, str, str, int]  # where it stands, the text, its translation, its bytes


def pairs_of(paths: Sequence[str], fields: tuple[str, str]) -> Iterator[PairOfTexts]:
    """Every pair of .jsonl files and folders of them, whose lines hold both texts under these fields; or of two text
    files, of which the first holds the texts and the second their translations, line by line. Raises ValueError."""
    if _two_files(paths):
        yield from _side_by_side(*(Path(path).expanduser() for path in paths))
        return
    for where, record, size in records(paths):
        wrong = [field for field in fields if not isinstance(record.get(field), str) or not record[field].strip()]
        if wrong:
            raise ValueError(f"{where}: expected a text under {' and '.join(wrong)}, got the keys {shown(record)}")
        yield where, record[fields[0]], record[fields[1]], size


def bytes_of(paths: Sequence[str]) -> int:
    """The size of the files."""
    if _two_files(paths):
        return sum(Path(path).expanduser().stat().st_size for path in paths)
    return size_of(paths)


def corpus(paths: Sequence[str], fields: tuple[str, str]) -> Corpus:
    """All texts and translations, to make one vocabulary of."""

    def read() -> Iterator[Document]:
        for _, source, target, size in pairs_of(paths, fields):
            yield Document(source, size)
            yield Document(target, 0)

    return Corpus(read, bytes_of(paths))


def translations(paths: Sequence[str], fields: tuple[str, str], tokenizer: Tokenizer) -> Iterator[Example]:
    """The ids of each translation, those of its text, and its bytes; each ends with the id that ends a text."""
    encode = encoder(tokenizer)
    for where, source, target, size in pairs_of(paths, fields):
        ids, read = encode(target).tolist(), encode(source).tolist()
        if not ids or not read:
            raise ValueError(f"{where}: a text without tokens")
        yield ids, read, size


def _two_files(paths: Sequence[str]) -> bool:
    found = [Path(path).expanduser() for path in paths]
    return len(found) == 2 and not any(path.suffix == ".jsonl" or path.is_dir() for path in found)


def _side_by_side(source: Path, target: Path) -> Iterator[PairOfTexts]:
    for path in (source, target):
        check_regular(path)
    with source.open("rb") as left, target.open("rb") as right:
        for number, lines in enumerate(zip_longest(left, right), 1):
            if None in lines:
                short, long = (source, target) if lines[0] is None else (target, source)
                raise ValueError(f"{short} ends before line {number}, which {long} has: their lines belong together")
            text, told = (
                _text(line, f"{path}, line {number}") for line, path in zip(lines, (source, target), strict=True)
            )
            yield f"{source}, line {number}", text, told, sum(map(len, lines))


def _text(line: bytes, where: str) -> str:
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8 text (byte {error.start} is {line[error.start]:#04x})") from error
    if not text.strip():
        raise ValueError(f"{where}: an empty line, which is no text to translate")
    return text

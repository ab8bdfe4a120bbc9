"""A small table of numbers and words: plain data, readable as text."""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from numbers import Integral
from typing import Any, SupportsFloat

from .figures import View, bars
from .printing import columns_of, printable

WIDTH = 80
_GAP = "  "
_NARROWEST = 8  # characters that a text column keeps when the table has to shrink
_NAMING = ("id", "position", "seed")  # columns whose numbers are copied elsewhere


@dataclass(frozen=True, repr=False)
class Table:
    """Named columns and rows of the same length, with a title and a note.

    Cells are numbers, words, or None where there is nothing to say. `print(table)` aligns them; numbers in a column
    share their decimals, and a number too small for those is written as a power of ten instead of as zero. Whole
    numbers have thousands separators, except where they name something (a column "id" or "position"). The words of the
    first column, which names the rows, are never broken.
    Raises ValueError when a row has not one cell for every column.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "rows", tuple(tuple(row) for row in self.rows))
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"row {number} of the table {self.title!r} must have {len(self.columns)} cells "
                    f"({', '.join(self.columns)}), got {len(row)}"
                )

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[object, ...]]:
        return iter(self.rows)

    def column(self, name: str) -> tuple[Any, ...]:
        """The cells of one column, from top to bottom. Raises ValueError for a name the table does not have."""
        if name not in self.columns:
            raise ValueError(f"the table {self.title!r} has the columns {', '.join(self.columns)}; got {name!r}")
        at = self.columns.index(name)
        return tuple(row[at] for row in self.rows)

    def top(self, k: int) -> "Table":
        """The first `k` rows; all of them when there are fewer. Raises ValueError for a negative `k`."""
        if k < 0:
            raise ValueError(f"k must be 0 or more, got {k}")
        return Table(self.title, self.columns, self.rows[:k], self.note)

    def to_json(self) -> dict[str, Any]:
        """Plain data: {"title", "columns", "rows", "note"}. NaN and infinities, which JSON lacks, become null."""
        rows = [[plain(cell) for cell in row] for row in self.rows]
        return {"title": self.title, "columns": list(self.columns), "rows": rows, "note": self.note}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Table":
        """A table from its plain data. Raises ValueError for data that is none."""
        expected = {"title": str, "columns": list, "rows": list, "note": str}
        if set(data) != set(expected) or not all(isinstance(data[name], kind) for name, kind in expected.items()):
            raise ValueError(f"a table is written as {', '.join(expected)}, got {', '.join(map(str, data))}")
        return cls(data["title"], tuple(map(str, data["columns"])), tuple(map(tuple, data["rows"])), data["note"])

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame, its title and note under `attrs`. Raises ValueError without pandas."""
        if find_spec("pandas") is None:
            raise ValueError("to_pandas needs pandas: pip install pandas; to_json gives plain data")
        pandas = import_module("pandas")
        frame = pandas.DataFrame(list(self.rows), columns=list(self.columns))
        frame.attrs |= {"title": self.title, "note": self.note}
        return frame

    def plot(self, column: str | None = None) -> View:
        """One bar a row: the first column of numbers, or the one named, under the words of the other columns before it.

        Raises ValueError where there are no numbers to draw, and without matplotlib.
        """
        numeric = [name for at, name in enumerate(self.columns) if _numeric(self._cells(at)) and name not in _NAMING]
        if column is not None and column not in numeric:
            raise ValueError(
                f"the numbers of {self.title!r} stand in {', '.join(numeric) or 'no column'}, got {column!r}"
            )
        if not numeric or not self.rows:
            raise ValueError(f"the table {self.title!r} has no numbers to draw")
        column = column or numeric[0]
        naming = [at for at, name in enumerate(self.columns[: self.columns.index(column)]) if name not in numeric]
        labels = [" ".join(str(row[at]) for at in naming) or str(number) for number, row in enumerate(self.rows)]
        return bars(labels, self.column(column), self.title, column)

    def text(self, width: int = WIDTH) -> str:
        """The table as aligned lines of at most `width` columns where its words can be wrapped to that."""
        columns = [_column(name, self._cells(at)) for at, name in enumerate(self.columns)]
        right = [_numeric(self._cells(at)) for at in range(len(columns))]
        widths = _fitted(columns, right, width)
        lines = [printable(self.title)] if self.title else []
        if columns:
            lines += _lines([cells[0] for cells in columns], widths, right)
            lines.append(_GAP.join("─" * size for size in widths))
        for row in zip(*(cells[1:] for cells in columns), strict=True):
            lines += _lines(list(row), widths, right)
        for paragraph in self.note.splitlines():
            lines += textwrap.wrap(printable(paragraph), width) or [""]
        return "\n".join(lines)

    def _cells(self, at: int) -> list[object]:
        return [row[at] for row in self.rows]

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__


def plain(value: object) -> Any:
    """A value as JSON data: int, finite float, str, bool, None, or a list or mapping of these."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, SupportsFloat):
        number = float(value)
        return number if math.isfinite(number) else None
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    return str(value)


def _is_number(cell: object) -> bool:
    return isinstance(cell, SupportsFloat) and not isinstance(cell, bool)


def _numeric(cells: list[object]) -> bool:
    return any(map(_is_number, cells)) and all(cell is None or _is_number(cell) for cell in cells)


def _column(name: str, cells: list[object]) -> list[str]:
    """The header and the cells as text, numbers alike in their decimals."""
    numbers = [float(cell) for cell in cells if _is_number(cell)]  # pyright: ignore[reportArgumentType]
    largest = max((abs(number) for number in numbers if math.isfinite(number)), default=0.0)
    return [printable(name), *(_cell(cell, largest, name) for cell in cells)]


def _cell(cell: object, largest: float, name: str) -> str:
    if cell is None:
        return ""
    if not _is_number(cell):
        return printable(str(cell))
    if isinstance(cell, Integral):
        return str(int(cell)) if name in _NAMING else f"{int(cell):,}"
    return _decimal(float(cell), largest)  # pyright: ignore[reportArgumentType]


def _decimal(number: float, largest: float) -> str:
    if number == 0 or not math.isfinite(number):
        return "0" if number == 0 else str(number)
    if largest >= 1e7 or largest < 1e-3:
        return f"{number:.3e}"
    text = f"{number:.{4 if largest < 1 else 3 if largest < 1000 else 1}f}"
    return text if float(text) else f"{number:.0e}"


def _fitted(columns: list[list[str]], numeric: list[bool], width: int) -> list[int]:
    """The width of each column: what it needs, then the widest columns of words shrunk until the table fits.

    Words are broken only where all columns of words are already as narrow as their longest word, and never in the first
    column; where that does not suffice the table is wider.
    """
    widths = [max(map(columns_of, cells)) for cells in columns]
    words = [at for at, is_number in enumerate(numeric) if not is_number]
    longest = {at: max(columns_of(word) for cell in columns[at] for word in cell.split(" ")) for at in words}
    whole = {at: max(longest[at], min(widths[at], _NARROWEST)) for at in words}
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    broken = {at: whole[at] if at == 0 else _NARROWEST for at in words}
    for least in (whole, broken):
        while excess > 0 and (loose := [at for at in words if widths[at] > least[at]]):
            widths[max(loose, key=widths.__getitem__)] -= 1
            excess -= 1
    return widths


def _lines(cells: list[str], widths: list[int], right: list[bool]) -> list[str]:
    """One row, on as many lines as its longest wrapped cell takes."""
    wrapped = [_wrap(cell, size) for cell, size in zip(cells, widths, strict=True)]
    lines = []
    for at in range(max(map(len, wrapped))):
        parts = [cell[at] if at < len(cell) else "" for cell in wrapped]
        padded = [
            " " * (size - columns_of(part)) + part if flush else part + " " * (size - columns_of(part))
            for part, size, flush in zip(parts, widths, right, strict=True)
        ]
        lines.append(_GAP.join(padded).rstrip())
    return lines


def _wrap(cell: str, width: int) -> list[str]:
    """A cell's lines, broken at spaces where it can be; inside a word only when the word is wider than the column."""
    if columns_of(cell) <= width:
        return [cell]
    lines, line = [], ""
    for word in cell.split(" "):
        joined = f"{line} {word}" if line else word
        if columns_of(joined) <= width:
            line = joined
            continue
        lines += [line] if line.strip() else []
        line = word
        while columns_of(line) > width:
            head = _head(line, width)
            lines.append(line[:head])
            line = line[head:]
    return [*lines, line]


def _head(word: str, width: int) -> int:
    """How many characters of a word fit, at least one: up to an opening bracket, so that what it holds stays whole."""
    at = 1
    while at < len(word) and columns_of(word[: at + 1]) <= width:
        at += 1
    return word.rfind("(", 0, at) + 1 or at

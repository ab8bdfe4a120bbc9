"""A grid of numbers over parts of a model: what an experiment did, or would do, at each of them."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ..views.figures import View, heat_map
from ..views.table import Table, plain


@dataclass(frozen=True, eq=False, repr=False)
class Effects:
    """One number for each row and column, such as a site and a position, or a layer and a head.

    `values` are in float64 on the CPU, NaN where a row has no such column. `base` and `source` are what the metric was
    in the two runs that were compared, where there were two. `names` says what rows, columns and values are.
    Raises ValueError when the values have not one row for each label, or not one column.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Float[Tensor, "R C"]
    note: str = ""
    base: float | None = None
    source: float | None = None
    names: tuple[str, str, str] = ("site", "position", "effect")

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))
        object.__setattr__(self, "columns", tuple(self.columns))
        expected = (len(self.rows), len(self.columns))
        if tuple(self.values.shape) != expected:
            got = tuple(self.values.shape)
            raise ValueError(f"a grid of {expected[0]} rows and {expected[1]} columns needs as many values, got {got}")
        object.__setattr__(self, "values", self.values.detach().double().cpu())

    def __getitem__(self, at: tuple[str | int, str | int]) -> float:
        """One value, by the labels of its row and column or by their numbers."""
        row, column = at
        return float(self.values[self._index(row, self.rows, 0), self._index(column, self.columns, 1)])

    def table(self) -> Table:
        """Every value on a line of its own, row by row; what is not there (NaN) is left out."""
        return Table(self.title, self.names, tuple(self._cells()), self.note)

    def top(self, k: int = 10) -> Table:
        """The k largest values by size."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        return Table(self.title, self.names, tuple(sorted(self._cells(), key=_size, reverse=True)[:k]), self.note)

    def grid(self) -> Table:
        """One line a row, one column a column."""
        lines = (
            (row, *(None if value != value else value for value in values))
            for row, values in zip(self.rows, self.values.tolist(), strict=True)
        )
        return Table(self.title, (self.names[0], *self.columns), tuple(lines), self.note)

    def plot(self) -> View:
        """The grid as a heat map, its rows and columns labelled. Raises ValueError without matplotlib."""
        cells = [[None if value != value else value for value in row] for row in self.values.tolist()]
        return heat_map(cells, self.rows, self.columns, self.title, self.names)

    def to_json(self) -> dict[str, object]:
        """The grid as plain data; a value that is not there is null."""
        return {
            "of": self.title,
            "names": list(self.names),
            "rows": list(self.rows),
            "columns": list(self.columns),
            "values": plain(self.values.tolist()),
            "base": plain(self.base),
            "source": plain(self.source),
            "note": self.note,
        }

    def _cells(self) -> list[tuple[str, str, float]]:
        return [
            (row, column, value)
            for row, values in zip(self.rows, self.values.tolist(), strict=True)
            for column, value in zip(self.columns, values, strict=True)
            if value == value
        ]

    def _index(self, label: str | int, labels: tuple[str, ...], axis: int) -> int:
        if isinstance(label, str) and label in labels:
            return labels.index(label)
        if isinstance(label, str) or not -len(labels) <= label < len(labels):
            name = self.names[axis]
            raise ValueError(f"there is no {name} {label!r}; there are {len(labels)}: {labels[0]!r} .. {labels[-1]!r}")
        return label

    def __str__(self) -> str:
        return str(self.grid())

    __repr__ = __str__


def _size(cell: tuple[str, str, float]) -> float:
    return abs(cell[2])

"""A lesson's figure as plain numbers: drawn by matplotlib, or in characters for a terminal."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..inside.effects import Effects
from ..inside.geometry import Path
from ..views import Table, bar, strip
from ..views.curves import curves
from ..views.figures import View
from ..views.printing import columns_of, printable

WIDTH = 80
_SHADES = " ░▒▓█"
_NAMED = 20  # characters for the name of what is drawn on a line


@dataclass(frozen=True)
class Curves:
    """Series over one x, each a name and one value for each x (None: a gap)."""

    title: str
    x: tuple[float, ...]
    series: tuple[tuple[str, tuple[float | None, ...]], ...]
    names: tuple[str, str] = ("", "")
    logarithmic: bool = False

    def plot(self) -> View:
        return curves(self.x, dict(self.series), self.title, self.names, self.logarithmic)

    def text(self, width: int = WIDTH) -> str:
        """A line for each series: its name, its shape, and the ends of its range; all on one scale."""
        across = f"{self.names[0]} {self.x[0]:g} to {self.x[-1]:g}; {self.names[1]}"
        lines = [self.title, across + (", logarithmic" if self.logarithmic else "")]
        seen = [value for _, values in self.series for value in values if value is not None]
        low = math.log10(min(seen)) if self.logarithmic else 0.0
        for name, values in self.series:
            known = [value for value in values if value is not None]
            range_of = f" {min(known):.3g} to {max(known):.3g}"
            shown = [math.nan if value is None else self._height(value, low) for value in values]
            top = max(self._height(value, low) for value in seen)
            # The tallest value of all is drawn last and cut off, so that every series has the same scale.
            drawn = strip([*_spread(shown, width - _NAMED - 22), top], 10**6)[:-1]
            lines.append(f"{_fit(name)} {drawn}{range_of}")
        return "\n".join(lines)

    def _height(self, value: float, low: float) -> float:
        return math.log10(value) - low if self.logarithmic else value


@dataclass(frozen=True)
class Bars:
    """A column of a table as bars, under the words of the first."""

    table: Table
    column: str

    def plot(self) -> View:
        return self.table.plot(self.column)

    def text(self, width: int = WIDTH) -> str:
        cells = self.table.column(self.column)
        values = [math.nan if value is None else float(value) for value in cells]
        most = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
        signed = any(value < 0 for value in values)
        lines = [f"{self.table.title}: {self.column}"]
        for name, value, cell in zip(self.table.column(self.table.columns[0]), values, cells, strict=True):
            drawn = bar(value, most, width - _NAMED - 16, signed=signed)
            lines.append(f"{_fit(str(name))} {drawn} {f'{cell:,}' if isinstance(cell, int) else f'{value:.4g}'}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Grid:
    """A grid of colours; in a terminal, of shades by size."""

    effects: Effects

    def plot(self) -> View:
        return self.effects.plot()

    def text(self, width: int = WIDTH) -> str:
        found, room = self.effects, (width - _NAMED - 1) // 2
        columns = min(room, len(found.columns))
        most = float(found.values.nan_to_num(0.0).abs().max()) or 1.0
        cut = f", first {columns} of {len(found.columns)} columns" if columns < len(found.columns) else ""
        lines = [printable(found.title), f"{found.names[1]} to the right{cut}; full shade is {most:.3g} in size"]
        for name, values in zip(found.rows, found.values.tolist(), strict=True):
            lines.append(f"{_fit(name)} {''.join(_shade(value / most) * 2 for value in values[:columns])}".rstrip())
        return "\n".join(lines)


@dataclass(frozen=True)
class Picture:
    """The path of the stream; in characters it has no form but its table."""

    path: Path

    def plot(self) -> View:
        return self.path.plot()

    def text(self, width: int = WIDTH) -> str:
        return ""


# Each draws itself by matplotlib (`plot`, which raises ValueError without it) and in characters of a terminal (`text`).
Drawing = Curves | Bars | Grid | Picture


def _spread(values: Sequence[float], width: int) -> list[float]:
    """At least a third of the width: each value as often as it takes to be seen; more values than fit as they are."""
    if len(values) >= width:
        step = len(values) / width
        return [values[int(at * step)] for at in range(width)]
    each = max(1, width // (2 * len(values)))
    return [value for value in values for _ in range(each)]


def _shade(share: float) -> str:
    return " " if math.isnan(share) else _SHADES[min(4, math.ceil(abs(share) * 4))]


def _fit(name: str) -> str:
    """The name in exactly so many columns."""
    name = printable(name)
    while columns_of(name) > _NAMED:
        name = f"{name[:-2]}…"
    return name + " " * (_NAMED - columns_of(name))

"""Figures by matplotlib: bars and heat maps with every label written out; none of matplotlib's global state."""

import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from .printing import printable
from .view import View

_LONGEST = 24  # characters of a label


def bars(labels: Sequence[str], values: Sequence[float | None], title: str, quantity: str) -> View:
    """One horizontal bar for each label, first on top; where there is no value, no bar.

    Raises ValueError where labels and values differ in number, and without matplotlib.
    """
    if len(labels) != len(values) or not labels:
        raise ValueError(f"a bar needs a label and a value: got {len(labels)} labels and {len(values)} values")
    heights = [math.nan if value is None else float(value) for value in values]
    figure = _figure(7.0, 1.2 + 0.26 * len(labels))
    axes = figure.add_subplot()
    axes.barh(range(len(labels)), heights, color=["#2f6fb0" if not value < 0 else "#c2542d" for value in heights])
    axes.set_yticks(range(len(labels)), [_label(label) for label in labels])
    axes.invert_yaxis()
    axes.axvline(0, color="0.4", linewidth=0.8)
    axes.set_xlabel(_literal(quantity))
    axes.set_title(_literal(title), loc="left", fontsize=10)
    return View(figure, title)


def heat_map(
    values: Sequence[Sequence[float | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    names: tuple[str, str, str] = ("row", "column", "value"),
    *,
    logarithmic: bool = False,
) -> View:
    """A grid of colours, purple above zero and orange below on one scale (white is zero), grey where there is no value.

    Where nothing is below zero the scale is of purple alone. A `logarithmic` one goes from the least value above zero
    to the largest, and has no colour for the others. `names` say what the rows, the columns and the values are. Raises
    ValueError for values that have not one row for each label, or not one column, and without matplotlib.
    """
    if not rows or not columns or len(values) != len(rows) or any(len(row) != len(columns) for row in values):
        sizes = f"{len(values)} x {sorted({len(row) for row in values})}"
        raise ValueError(f"a heat map of {len(rows)} rows and {len(columns)} columns needs as many values, got {sizes}")
    cells = [[math.nan if value is None else float(value) for value in row] for row in values]
    finite = [value for row in cells for value in row if math.isfinite(value)]
    most = max(map(abs, finite), default=0.0) or 1.0
    signed = min(finite, default=0.0) < 0
    figure = _figure(2.8 + 0.32 * len(columns), 1.9 + 0.24 * len(rows))
    axes = figure.add_subplot()
    axes.set_facecolor("0.85")
    ends: dict[str, Any] = {"vmin": -most if signed else 0.0, "vmax": most}
    if logarithmic:
        ends = {"norm": _logarithmic([value for value in finite if value > 0])}
    cmap = "PuOr" if signed and not logarithmic else "Purples"
    shown = axes.imshow(cells, cmap=cmap, aspect="auto", interpolation="nearest", **ends)
    axes.set_xticks(range(len(columns)), [_label(label) for label in columns], rotation=90)
    axes.set_yticks(range(len(rows)), [_label(label) for label in rows])
    axes.set_xlabel(_literal(names[1]))
    axes.set_ylabel(_literal(names[0]))
    axes.set_title(_literal(title), loc="left", fontsize=10)
    figure.colorbar(shown, ax=axes, label=_literal(names[2]))
    return View(figure, title)


def _logarithmic(values: Sequence[float]) -> Any:
    from matplotlib.colors import LogNorm

    low, high = min(values, default=0.1), max(values, default=1.0)
    return LogNorm(low, high if high > low else 10 * low)


def _figure(width: float, height: float) -> Any:
    if find_spec("matplotlib") is None:
        raise ValueError("drawing needs matplotlib: pip install 'pellucid[train]'")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(min(width, 40.0), min(height, 60.0)), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _label(text: str) -> str:
    text = printable(text)
    return _literal(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…")


def _literal(text: str) -> str:
    """The text itself: matplotlib would read what stands between dollar signs as a formula."""
    return printable(text).replace("$", r"\$")

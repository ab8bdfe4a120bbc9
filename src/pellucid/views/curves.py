"""Figures by matplotlib: curves over one axis, and paths in a plane."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .figures import View, _figure, _literal

_MOST_NAMED = 12  # curves that a legend still tells apart


def curves(
    x: Sequence[float],
    series: Mapping[str, Sequence[float | None]],
    title: str,
    names: tuple[str, str] = ("", ""),
    logarithmic: bool = False,
) -> View:
    """One curve for each series, over a common x; where there is no value, a gap.

    `names` say what x and the values are; `logarithmic` is of the values. Raises ValueError for a series that has not
    one value for each x, and without matplotlib.
    """
    if not series or any(len(values) != len(x) for values in series.values()):
        raise ValueError(f"curves need series of {len(x)} values, got {[len(values) for values in series.values()]}")
    figure = _figure(7.0, 4.2)
    axes = figure.add_subplot()
    for name, values in series.items():
        heights = [math.nan if value is None else float(value) for value in values]
        axes.plot(list(x), heights, label=_literal(name), linewidth=1.5, marker="." if len(x) < 40 else "")
    if logarithmic:
        axes.set_yscale("log")
    if all(float(value).is_integer() for value in x):
        axes.xaxis.get_major_locator().set_params(integer=True)
    return _named(figure, axes, title, names, len(series))


def paths(points: Mapping[str, Sequence[tuple[float, float]]], title: str, names: tuple[str, str] = ("x", "y")) -> View:
    """One path through a plane for each name: a ring where it begins, a dot at every point, the name where it ends.

    Raises ValueError where there is nothing to draw, and without matplotlib.
    """
    if not points or not all(points.values()):
        raise ValueError("a path needs at least one point, got none")
    figure = _figure(7.0, 5.6)
    axes = figure.add_subplot()
    for name, path in points.items():
        across, up = zip(*path, strict=True)
        (line,) = axes.plot(across, up, label=_literal(name), linewidth=1.0, marker=".", markersize=3)
        axes.plot(across[:1], up[:1], marker="o", markerfacecolor="none", color=line.get_color())
        axes.annotate(_literal(name), (across[-1], up[-1]), fontsize=7, color=line.get_color())
    return _named(figure, axes, title, names, series=1)


def _named(figure: Any, axes: Any, title: str, names: tuple[str, str], series: int) -> View:
    if 1 < series <= _MOST_NAMED:
        axes.legend(fontsize=8, frameon=False)
    axes.set_xlabel(_literal(names[0]))
    axes.set_ylabel(_literal(names[1]))
    axes.set_title(_literal(title), loc="left", fontsize=10)
    return View(figure, title)

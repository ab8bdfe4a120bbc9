"""The watches of a run as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .curve import can_draw, put_picture
from .journal import read_journal

MOST_LINES = 8  # measures that are told apart as lines; more of them make a heat map
LOSS = "loss"  # a measure of this name is in nats, and drawn by itself
Series = dict[str, list[tuple[int, float]]]  # by measure: (steps taken, value)


def series(watches: Path) -> dict[str, Series]:
    """The measures of each watch, in the order in which they were first taken; what is not finite is left out."""
    found: dict[str, Series] = {}
    for line in read_journal(watches):
        step, name = line.pop("step") + 1, line.pop("watch", None)
        for measure, value in line.items():
            if value is not None:
                found.setdefault(str(name), {}).setdefault(measure, []).append((step, value))
    return found


def draw_watches(watches: Path, picture: Path) -> None:
    """Draw the watches of a run as a PNG, one below the other: lines for few measures, a heat map for many.

    Draws nothing where nothing was watched. Raises ValueError without matplotlib.
    """
    if not can_draw():
        raise ValueError("drawing the watches needs matplotlib: pip install 'pellucid[train]'")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels: list[tuple[str, Series]] = []
    for name, measures in series(watches).items():
        groups = [{m: points for m, points in measures.items() if (m == LOSS) == of_loss} for of_loss in (True, False)]
        titles = (f"{name}: loss (nats a token)", name)
        panels += [(title, group) for title, group in zip(titles, groups, strict=True) if group]
    if not panels:
        return
    figure = Figure(figsize=(8, 2.6 * len(panels) + 0.4), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    column = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, (title, measures) in zip(column, panels, strict=True):
        (_lines if len(measures) <= MOST_LINES else _heat)(figure, axes, measures)
        axes.set_title(title, loc="left", fontsize=10)
    column[-1].set_xlabel("step")
    put_picture(canvas, picture)


def _lines(figure: Any, axes: Any, measures: Series) -> None:
    for name, points in measures.items():
        axes.plot(*zip(*points, strict=True), label=name, linewidth=1.4)
    if len(measures) > 1:
        axes.legend(fontsize=8, ncols=2)


def _heat(figure: Any, axes: Any, measures: Series) -> None:
    """Measures downwards, steps to the right."""
    steps = sorted({step for points in measures.values() for step, _ in points})
    rows = [_row(steps, dict(points)) for points in measures.values()]
    shown = axes.pcolormesh(steps, range(len(rows)), rows, shading="nearest", cmap="viridis")
    every = max(1, len(rows) // 16)
    axes.set_yticks(range(0, len(rows), every), list(measures)[::every], fontsize=7)
    axes.invert_yaxis()
    figure.colorbar(shown, ax=axes)


def _row(steps: Sequence[int], values: dict[int, float]) -> list[float]:
    return [values.get(step, float("nan")) for step in steps]

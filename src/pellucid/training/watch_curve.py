"""The watches of a run as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .curve import can_draw, put_picture
from .journal import read_journal
from .watch_names import CHANCE, LOSS, QUANTITIES

MOST_LINES = 8  # measures that are told apart as lines; more of them make a heat map
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

    panels: list[tuple[str, str, Series]] = []  # title, what is measured, and the measures
    for name, measures in series(watches).items():
        groups = [{m: points for m, points in measures.items() if (m == LOSS) == of_loss} for of_loss in (True, False)]
        quantities = ("loss (nats a token)", QUANTITIES.get(name, name))
        panels += [(name, what, group) for what, group in zip(quantities, groups, strict=True) if group]
    if not panels:
        return
    figure = Figure(figsize=(8, 2.6 * len(panels) + 0.4), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    column = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, (title, quantity, measures) in zip(column, panels, strict=True):
        (_lines if len(measures) <= MOST_LINES else _heat)(axes, measures, quantity)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel("step")
    put_picture(canvas, picture)


def _lines(axes: Any, measures: Series, quantity: str) -> None:
    for name, points in measures.items():
        style: dict[str, Any] = {"color": "grey", "linestyle": ":"} if name == CHANCE else {"linewidth": 1.4}
        axes.plot(*zip(*points, strict=True), label=name, **style)
    axes.set_ylabel(quantity)
    if len(measures) > 1:
        axes.legend(fontsize=8, ncols=2)


def _heat(axes: Any, measures: Series, quantity: str) -> None:
    """Measures downwards, steps to the right; the last value by chance stands at the colours."""
    measures, chance = dict(measures), measures.get(CHANCE)
    measures.pop(CHANCE, None)
    steps = sorted({step for points in measures.values() for step, _ in points})
    rows = [_row(steps, dict(points)) for points in measures.values()]
    shown = axes.pcolormesh(steps, range(len(rows)), rows, shading="nearest", cmap="viridis")
    every = max(1, len(rows) // 16)
    axes.set_yticks(range(0, len(rows), every), list(measures)[::every], fontsize=7)
    axes.invert_yaxis()
    bar = axes.figure.colorbar(shown, ax=axes, label=quantity)
    if chance is not None:
        bar.ax.axhline(chance[-1][1], color="red", linestyle=":")
        left = {"ha": "right", "va": "center", "transform": bar.ax.get_yaxis_transform()}
        bar.ax.text(-0.15, chance[-1][1], CHANCE, color="red", fontsize=7, **left)


def _row(steps: Sequence[int], values: dict[int, float]) -> list[float]:
    return [values.get(step, float("nan")) for step in steps]

"""The losses and the learning rate of a run as a picture."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .journal import read_journal


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def draw(metrics: Path, picture: Path) -> None:
    """Draw the metrics of a run as a PNG: loss of each step and of the validation data above, learning rate below.

    Raises ValueError without matplotlib.
    """
    if not can_draw():
        raise ValueError("drawing the curve needs matplotlib: pip install 'pellucid[train]'")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = list(read_journal(metrics))
    figure = Figure(figsize=(8, 5), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for axes, key, label in ((top, "loss", "training"), (top, "validation", "validation"), (bottom, "lr", None)):
        points = [(line["step"] + 1, line[key]) for line in lines if line.get(key) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, linewidth=0.8 if key == "loss" else 1.8)
    top.set_ylabel("loss (nats a token)")
    bottom.set_ylabel("learning rate")
    bottom.set_xlabel("step")
    if top.lines:
        top.legend()
    put_picture(canvas, picture)


def put_picture(canvas: Any, picture: Path) -> None:
    """Write a canvas of matplotlib's as a PNG: aside, then into its place."""
    aside = picture.with_name(f".{picture.name}.tmp")
    canvas.print_figure(aside, format="png", dpi=120)
    aside.replace(picture)

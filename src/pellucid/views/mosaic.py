"""Many small pictures beside one another, by matplotlib."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .figures import _figure, _label, _literal
from .view import View

_SIDE = 96  # cells of a small picture, at most: no screen shows more


def mosaic(
    pictures: Sequence[np.ndarray], rows: Sequence[str], columns: Sequence[str], title: str, names: tuple[str, str, str]
) -> View:
    """For each row its small pictures, one a column: dark is 1, light is 0. Each of `pictures` is columns x height x
    width.

    `names` say what rows, columns and values are. Large ones are made smaller: of several cells the largest is kept.
    Raises ValueError where pictures and labels differ in number, and without matplotlib.
    """
    if len(pictures) != len(rows) or any(len(row) != len(columns) for row in pictures):
        raise ValueError(f"{len(rows)} x {len(columns)} labels need as many pictures, got {[len(p) for p in pictures]}")
    small = [[_smaller(picture) for picture in row] for row in pictures]
    height, width = small[0][0].shape
    whole = np.full((len(rows) * (height + 1) - 1, len(columns) * (width + 1) - 1), np.nan)
    for row, found in enumerate(small):
        for column, picture in enumerate(found):
            top, left = row * (height + 1), column * (width + 1)
            whole[top : top + height, left : left + width] = picture
    figure = _figure(1.6 + 0.75 * len(columns), 1.4 + 0.75 * len(rows) * height / width)
    axes: Any = figure.add_subplot()
    axes.set_facecolor("0.8")
    shown = axes.imshow(whole, cmap="Greys", vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
    axes.set_xticks([(width + 1) * at + width / 2 - 0.5 for at in range(len(columns))], list(map(_label, columns)))
    axes.set_yticks([(height + 1) * at + height / 2 - 0.5 for at in range(len(rows))], list(map(_label, rows)))
    axes.tick_params(length=0)
    axes.set_ylabel(_literal(names[0]))
    axes.set_xlabel(_literal(names[1]))
    axes.set_title(_literal(title), loc="left", fontsize=10)
    figure.colorbar(shown, ax=axes, label=_literal(names[2]))
    return View(figure, title)


def _smaller(picture: np.ndarray) -> np.ndarray:
    """At most _SIDE cells high and wide: of every group of cells the largest."""
    for axis in (0, 1):
        step = -(-picture.shape[axis] // _SIDE)
        picture = np.maximum.reduceat(picture, np.arange(0, picture.shape[axis], step), axis=axis)
    return picture

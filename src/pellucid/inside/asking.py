"""How a run is asked about one of its tokens: without gradients, under its own precision, and with its own weights."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

from .accounting import Spot
from .reading import Point
from .run import Run

Answer = TypeVar("Answer")


def ask(run: Run, question: Callable[[Point], Answer], row: int, position: int, groups: Iterable[str]) -> Answer:
    """A question of one token, by its number among the row's tokens. `groups` are the weights that it reads.

    Raises WeightsChangedError where these are others than those that ran.
    """
    column, row = run.column(row, position), range(run.ids.shape[0])[row]
    edited = frozenset(run.plan.sites())
    point = Point(run.recording.row(row), run.present(row), column, run.tokenizer, edited)
    run.check(groups)
    with torch.no_grad(), run.precision.restored():
        return question(point)


def account(run: Run, question: Callable[[Spot], Answer], row: int, position: int, groups: Iterable[str]) -> Answer:
    """A question of one token and all that was written before it; else as `ask`."""
    spot = Spot.of(run, row, position)
    run.check(groups)
    with torch.no_grad(), run.precision.restored():
        return question(spot)

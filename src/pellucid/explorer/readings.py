"""What a model's weights say by themselves: of one head, of one neuron, and of every head on texts of our own."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from ..front import Model
from ..inside.report_card import ReportCard
from ..inside.shown.head_reading import head_reading
from ..inside.shown.neuron_reading import neuron_reading
from .models import Held
from .worker import Job

READINGS: dict[str, Callable[..., dict[str, Any]]] = {"head": head_reading, "neuron": neuron_reading}


def read_weights(model: Model, reading: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What one reading says of a model."""
    return READINGS[reading](model.transformer, model.tokenizer, **parameters)


def card_of(held: Held, job: Job) -> dict[str, Any]:
    """A model's report card as pages show it, made when it is first asked for."""
    if held.card is None:

        def told(done: int, total: int) -> None:
            job.tell("progress", {"stage": "heads", "done": done, "total": total})

        held.card = as_grids(held.model.heads(progress=told))
    return held.card


def as_grids(card: ReportCard) -> dict[str, Any]:
    """Each head's kind, and each score of all heads as a grid, layer by head."""
    scores = [
        {
            "name": each.scores.name,
            "text": each.text,
            "formula": each.scores.formula,
            "values": [[_number(value) for value in row] for row in each.scores.score.tolist()],
            "threshold": each.threshold if each.kind else None,
        }
        for each in card.measures
    ]
    return {"kinds": [list(kinds) for kinds in card.kinds], "scores": scores, "note": card.note}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None

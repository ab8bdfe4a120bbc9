"""A view of a run as a picture: the page with all that it asks for laid into one file, and a figure of the same."""

import json
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from ...model.budget import budget
from ...views.packed import Packed
from ...views.page import one_file
from ...views.table import plain
from ...views.view import View
from ..reading import state_sites
from ..run import Run
from .drawn import DRAWN
from .head_reading import head_reading
from .neuron_reading import neuron_reading
from .patterns import check_part, within
from .resources import Shown, address, answer
from .summary import model_info, trace_info
from .wanted import WANTED, Asked, Chosen

ID = "saved"  # of the run and of its model: a file holds one of each
ROOM = 400_000  # bytes of answers that are added to those that a view needs
MOST = 200  # of these answers
READINGS = {"head": head_reading, "neuron": neuron_reading}
CHOICES = ("layer", "head", "part", "position", "key", "neuron", "token")
_TITLE = 12  # tokens of a text that a title gives


def show(run: Run, view: str = "glance", **chosen: Any) -> View:
    """One of the page's views of the first text of a run, with what is chosen in it.

    Raises ValueError for a view that there is not, and for something chosen that the model or the text does not have.
    """
    if view not in WANTED:
        raise ValueError(f"a trace is shown as {', '.join(WANTED)}; got {view!r}")
    found = choose(run, **chosen)
    title = f"{view}: {' '.join(run.tokens()[:_TITLE])}"
    return View(partial(_drawn, run, view, found, title), title, partial(_page, run, view, found, title))


def choose(run: Run, **chosen: Any) -> Chosen:
    """What is chosen, checked against the model and the text: the last token, where no position is given."""
    if unknown := sorted(set(chosen) - set(CHOICES)):
        raise ValueError(f"in a view {', '.join(CHOICES)} can be chosen; got {', '.join(unknown)}")
    config, given = run.transformer.config, {"part": "attention", "position": -1, **chosen}
    check_part(run, given["part"])
    for name, size in (("layer", config.n_layers), ("head", config.n_heads), ("neuron", config.d_ff)):
        if name in given:
            _whole(name, given[name])
            within(name, given[name], size)
    given["position"] = run.columns().index(run.column(0, given["position"]))
    if "key" in given:
        _whole("key", given["key"])
        keys = run.source if given["part"] == "cross" and run.source is not None else run
        within("key", given["key"], len(keys.columns()))
    if given.get("token") is not None:
        given["token"] = run.id_of(given["token"])
    states = state_sites(run.transformer)
    state = states.index(f"{run.transformer.prefix}{given['layer']}.stream") if "layer" in given else len(states) - 1
    return Chosen(**given, state=state)


def _whole(name: str, value: object) -> None:
    """Refuse what numbers nothing, before it is compared with how many there are."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number, got {value!r}")


def gathered(run: Run, view: str, chosen: Chosen) -> dict[str, Shown]:
    """The answers to what a view asks, by address: all that it needs, then more while there is room."""
    answers: dict[str, Shown] = {}
    wanted, needed, size = WANTED[view](run, chosen), None, 0
    said: Shown | None = None
    with suppress(StopIteration):
        while needed is None or (size < ROOM and len(answers) < needed + MOST):
            asked = wanted.send(said)
            if asked is None:
                needed, said = len(answers), None
                continue
            where = f"{asked.of}/{ID}/{address(asked.resource, **asked.parameters)}"
            if where not in answers:
                answers[where] = _answer(run, asked)
                size += 0 if needed is None else _size(answers[where])
            said = answers[where]
    return answers


def _answer(run: Run, asked: Asked) -> Shown:
    if asked.of == "models":
        shown: Shown = READINGS[asked.resource](run.transformer, run.tokenizer, **asked.parameters)  # type: ignore[arg-type]
    else:
        shown = answer(run, asked.resource, asked.parameters)
    return shown if isinstance(shown, Packed) else plain(shown)


def _size(shown: Shown) -> int:
    """About how many bytes an answer takes in a file."""
    return len(shown.to_bytes()) * 4 // 3 if isinstance(shown, Packed) else len(json.dumps(shown))


def _page(run: Run, view: str, chosen: Chosen, title: str) -> str:
    name = f"{budget(run.transformer.config).total:,} parameters"
    info = trace_info(run, ID, ID, "")
    info["text"] = "".join(info["texts"])
    state = {
        "model": model_info(run.transformer, name, ID),
        "trace": info,
        "text": info["text"],
        "view": view,
        "chosen": asdict(chosen),
    }
    return one_file(plain(state), gathered(run, view, chosen), title)


def _drawn(run: Run, view: str, chosen: Chosen, title: str) -> Any:
    return DRAWN[view](run, chosen, title).figure

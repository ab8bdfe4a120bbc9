"""What commands share in speaking: reading a prompt, opening a model, printing JSON."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..views.table import plain

if TYPE_CHECKING:
    from ..front import Model
    from ..inside.trace import Trace


def read_prompt(prompt: str) -> str:
    """The prompt itself, or stdin for "-". One final newline of stdin, which `echo` adds, is not part of the text.

    Raises ValueError for bytes that are no text.
    """
    text = sys.stdin.read().removesuffix("\n") if prompt == "-" else prompt
    if any("\ud800" <= char <= "\udfff" for char in text):  # how Python carries bytes that it could not decode
        raise ValueError("the prompt is not valid text in this terminal's encoding, which should be UTF-8")
    return text


def open_model(name: str) -> "Model":
    """Load a model, with a spinner on stderr when that is a terminal."""
    with waiting(f"loading {name}"):
        from ..front import load

        return load(name)


def trace_of(model: "Model", text: str, source: str | None) -> "Trace":
    """The trace of a text; in a model that fills masks, a mask that is written out is one."""
    ids = model.encode(text, special=model.fills)
    return model.trace(ids, source=None if source is None else read_prompt(source))


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show that something is going on, on stderr and only to a person."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(escape(what)):
        yield


def print_json(data: dict[str, Any]) -> None:
    """One object on stdout, in ASCII, so that no terminal's encoding can break it."""
    print(json.dumps(plain(data), allow_nan=False))


def layers_of(text: str, n_layers: int) -> list[int]:
    """The layers that "0,1,29", "3-5" or "all" name. Raises ValueError for others than the model has."""
    if text == "all":
        return list(range(n_layers))
    layers: list[int] = []
    for part in filter(None, text.replace(" ", "").split(",")):
        ends = part.split("-")
        if len(ends) > 2 or not all(end.isdecimal() for end in ends):
            raise ValueError(f"--layers takes numbers and ranges such as 0,1,29 or 3-5, or all; got {text!r}")
        layers += range(int(ends[0]), int(ends[-1]) + 1)
    wrong = [layer for layer in layers if layer >= n_layers]
    if wrong:
        raise ValueError(f"the layers are 0..{n_layers - 1}, got {wrong[0]}")
    return sorted(set(layers))

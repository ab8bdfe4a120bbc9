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


def read_prompt(prompt: str, what: str = "the prompt") -> str:
    """The prompt itself, or stdin for "-". One final newline of stdin, which `echo` adds, is not part of the text.

    Raises ValueError for bytes that are no text, which `what` names.
    """
    if prompt == "-":
        check_stdin()
        prompt = sys.stdin.read().removesuffix("\n")
    return as_text(prompt, what)


def as_text(text: str, what: str) -> str:
    """The text itself. Raises ValueError where it holds bytes that are no text."""
    if any("\ud800" <= char <= "\udfff" for char in text):  # how Python carries bytes that it could not decode
        raise ValueError(f"{what} is not valid text in this terminal's encoding, which should be UTF-8")
    return text


def check_stdin() -> None:
    """Raise ValueError where the input was closed before the program started."""
    if sys.stdin is None:  # how Python has a stream that is closed
        raise ValueError("stdin is closed, and the text is read from there")


def check_not_empty(name: str) -> str:
    """The name itself. Raises ValueError for an empty one, which as a path would be the current folder."""
    if not name.strip():
        raise ValueError("the model's name is empty: expected a known name, a folder, a file or a hub name")
    return name


def check_name(name: str) -> str:
    """The model's name itself. Raises ValueError for an empty one, and for a preset, which has no weights."""
    check_not_empty(name)
    from ..weights.known import KNOWN, on_disk

    if name not in KNOWN and on_disk(name) is None:
        from ..weights.presets import PRESETS

        if name in PRESETS:
            raise ValueError(
                f"{name} is a preset, a shape without weights: pellucid params and pellucid sites show it; for weights "
                "name a folder, a file or a model on the hub (org/name)"
            )
    return name


def open_model(name: str, words: bool = True) -> "Model":
    """Load a model, with a spinner on stderr when that is a terminal.

    Raises ValueError where it has no tokenizer and `words` are to be read or written.
    """
    with waiting(f"loading {name}"):
        from ..front import load

        model = load(name)
    if words and model.tokenizer is None:
        from ..text.finding import FILES

        raise ValueError(
            f"{name} has no tokenizer, without which there is no text: a folder holds one beside its weights, as "
            f"{', '.join(FILES[:-1])} or {FILES[-1]}; a .gguf file holds it within itself"
        )
    return model


def trace_of(model: "Model", text: str, source: str | None) -> "Trace":
    """The trace of a text; in a model that fills masks, a mask that is written out is one."""
    if model.transformer.encoder is not None:
        if source is None:
            raise ValueError(f"{model.name} has an encoder, which reads a text of its own: give it with --source TEXT")
        return model.trace(text, source=read_prompt(source, "--source"))
    ids = model.encode(text, special=model.fills) or _beginning(model)
    return model.trace(ids, source=None if source is None else read_prompt(source, "--source"))


def _beginning(model: "Model") -> list[int]:
    """What an empty text is begun with, as `generate` does."""
    if model.tokenizer is None or model.tokenizer.bos_id is None:
        raise ValueError("the prompt is empty, and this model has no token that begins a text: give it some words")
    return [model.tokenizer.bos_id]


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show that something is going on, on stderr and only to a person."""
    if sys.stderr is None or not sys.stderr.isatty():
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
    layers: set[int] = set()
    for part in text.replace(" ", "").split(",") if text else ():
        ends = part.split("-")
        if len(ends) > 2 or not all(end.isdecimal() for end in ends):
            raise ValueError(f"--layers takes numbers and ranges such as 0,1,29 or 3-5, or all; got {text!r}")
        first, last = int(ends[0]), int(ends[-1])
        if max(first, last) >= n_layers:
            raise ValueError(f"the layers are 0..{n_layers - 1}, got {max(first, last)}")
        if first > last:
            raise ValueError(f"a range of layers goes upwards, as 3-5 does; got {part}")
        layers.update(range(first, last + 1))
    return sorted(layers)

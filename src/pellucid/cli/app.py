"""The list of commands. Their files are imported when they are called, so that help costs nothing."""

from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

COMMANDS = {
    "run": "Continue a text.",
    "chat": "Talk with a model.",
    "fill": "Say what stands behind each [MASK] of a text.",
    "trace": "Show every stage of the forward pass.",
    "explain": "Say why the next token is what it is.",
    "heads": "Say what kind of head each one is.",
    "patch": "Say where the difference between two texts is carried.",
    "neurons": "Say what neurons write, and what they are strongest on.",
    "edit": "Say what edits change, and save a model that keeps them.",
    "params": "Count the parameters, line by line.",
    "sites": "List every value that can be read.",
    "explore": "Look into a model in a browser.",
    "lesson": "Compute one claim of the lessons, and draw it.",
    "convert": "Write a model's weights in another form.",
    "tokenize": "Turn text into a file of tokens.",
    "train": "Train a model.",
    "eval": "Measure how well a model predicts a text.",
}


class Commands(TyperGroup):
    """A group that knows its commands' names, and fetches the one that is called."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        for name, summary in COMMANDS.items():
            self.add_command(TyperCommand(name=name, help=summary, callback=None))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, entry, rest = super().resolve_command(ctx, args)
        return name, entry if entry is None else fetch(entry.name or ""), rest


def command() -> Any:
    """The whole command line, ready to be run."""
    app = typer.Typer(name="pellucid", cls=Commands, rich_markup_mode=None)
    app.callback()(_top)
    return typer.main.get_command(app)


def fetch(name: str) -> Any:
    """One command, from the function of its name in the file of its name."""
    function: Callable[..., None] = getattr(import_module(f".{name}", __package__), name)
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(name)(function)
    return typer.main.get_command(app)


def _show_version(wanted: bool) -> bool:
    if wanted:
        from .. import __version__

        typer.echo(f"pellucid {__version__}")
        raise typer.Exit
    return wanted


def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """One readable transformer, and everything inside it.

    MODEL is a known name (smollm2, gpt2), a folder, a .gguf, .bin, .pt or mapping (.toml) file, or a name on the
    Hugging Face hub. Every command takes --json: one object on stdout, nothing else.
    """

"""Bars on stderr, for a person only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

Advance = Callable[[int], Any]
Task = Callable[[str, int | None], Advance]  # (what is done, how much there is) -> told of what is done


@contextmanager
def bars() -> Iterator[Task]:
    """A function that begins a bar; all of them end together."""
    with ExitStack() as stack:
        if not sys.stderr.isatty():
            yield lambda what, size: lambda done: None
            return
        from rich.console import Console
        from rich.progress import Progress

        shown = stack.enter_context(Progress(console=Console(stderr=True), transient=True))

        def begin(what: str, size: int | None) -> Advance:
            bar = shown.add_task(what, total=size)
            return lambda done: shown.advance(bar, done)

        yield begin

"""Bars on stderr, for a person only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

Advance = Callable[[int], Any]
Task = Callable[[str, int | None], Advance]  # (what is done, how much there is) -> told of what is done


@contextmanager
def bars(wanted: bool = True) -> Iterator[Task]:
    """A function that begins a bar; all of them end together."""
    with ExitStack() as stack:
        if not (wanted and sys.stderr.isatty()):
            yield lambda what, size: lambda done: None
            return
        from rich.console import Console
        from rich.progress import Progress

        # What is printed meanwhile stands above the bar, on a terminal; what goes to a file must not be led there.
        above = sys.stdout.isatty()
        bar = Progress(console=Console(stderr=True), transient=True, redirect_stdout=above, redirect_stderr=above)
        shown = stack.enter_context(bar)

        def begin(what: str, size: int | None) -> Advance:
            begun = shown.add_task(what, total=size)
            return lambda done: shown.advance(begun, done)

        yield begin

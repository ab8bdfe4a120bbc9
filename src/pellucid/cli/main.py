"""From arguments to an exit code: 0 done, 2 the user's error in one line, 130 interrupted."""

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

import typer

from .app import command

# A release of Typer brings click under its own name or not; this is its usage error in both.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def main() -> None:
    """Run the command that the process was started with, and exit."""
    if sys.stdout is None:  # how Python has a stream that was closed before it started
        sys.exit(_refuse("stdout is closed, and what is found goes there"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without block characters shows "?", it does not fail
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return the exit code.

    What a user can get wrong (a name, an option, a file) becomes one line on stderr; errors of the program itself keep
    their traceback.
    """
    try:
        code = command().main(list(arguments) or ["--help"], prog_name="pellucid", standalone_mode=False)
        sys.stdout.flush()
    except UsageError as error:
        return _refuse(error.format_message())  # pyright: ignore[reportAttributeAccessIssue]
    except BrokenPipeError:
        return _reader_gone()
    except (ValueError, OSError) as error:
        return _refuse(str(error) or type(error).__name__)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    return code if isinstance(code, int) else 0


def _refuse(reason: str) -> int:
    if sys.stderr is not None:
        print("pellucid:", " ".join(reason.split()), file=sys.stderr)
    return 2


def _reader_gone() -> int:
    """The reader of a pipe has left: nobody to tell, and nothing to flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1

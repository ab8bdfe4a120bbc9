"""The command `pellucid`, also as `python -m pellucid`."""

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command that the process was started with, and exit."""
    watch_interrupts()
    from .cli import main as run

    run()


def watch_interrupts() -> None:
    """Let every Ctrl-C end the program, unless it was started with interrupts ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)


def _interrupted(number: int, frame: FrameType | None) -> None:
    """KeyboardInterrupt; but inside an import, where extensions lose it or abort on it, the end at once."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            if sys.stderr is not None and sys.stderr.isatty():
                os.write(sys.stderr.fileno(), b"\r\x1b[2K\x1b[?25h")  # a spinner has hidden the cursor
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()

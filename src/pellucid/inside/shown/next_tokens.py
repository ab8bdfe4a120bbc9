"""The next tokens after any position."""

from functools import partial
from typing import Any

from ..asking import ask
from ..lens import top
from ..run import Run


def next_tokens(run: Run, position: int = -1, k: int = 10) -> dict[str, Any]:
    """The k most probable tokens after a position (of a bidirectional model: at it), as a table."""
    return ask(run, partial(top, k=k), 0, position, ["final"]).to_json()

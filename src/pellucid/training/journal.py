"""Lines of JSON that a run writes as it goes, each with its step."""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Journal:
    """A file of JSON lines that grows. A line that was cut off by the end of the process is no line.

    `since`: lines of this step and later ones are taken out first, as a run that goes on will write them again.
    """

    def __init__(self, path: Path, since: int = 0):
        kept = [line for line in read_journal(path) if line["step"] < since]
        aside = path.with_name(f".{path.name}.tmp")
        aside.write_text("".join(map(_line, kept)), encoding="ascii")
        os.replace(aside, path)
        self._file = path.open("a", encoding="ascii")

    def write(self, line: dict[str, Any]) -> None:
        """Add a line; numbers that are not finite become null."""
        self._file.write(_line({name: _finite(value) for name, value in line.items()}))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a journal, none if it is not there."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict) and type(found.get("step")) is int:
                yield found


def _line(values: dict[str, Any]) -> str:
    return json.dumps(values) + "\n"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value

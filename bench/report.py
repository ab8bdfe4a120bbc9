"""What every file of results says, and how."""

import platform
from pathlib import Path

Row = tuple[str, ...]


def processor() -> str:
    """The machine's processor by name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()


def table(columns: Row, rows: list[Row]) -> str:
    """A table as Markdown."""
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)

"""Text as it fits on a line of a terminal."""

import unicodedata


def printable(text: str) -> str:
    """The text on one line: control and other unprintable characters are written as escapes."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def columns_of(text: str) -> int:
    """How many terminal columns a text takes: East Asian wide characters two, combining marks none."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )

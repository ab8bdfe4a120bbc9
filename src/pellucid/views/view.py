"""A picture: a figure of matplotlib's, a page, or both."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

from .page import PageMissingError, framed, pictured

FORMATS = (".png", ".svg", ".pdf", ".html")


@dataclass(frozen=True, eq=False)
class View:
    """A picture. A notebook shows it; `save` writes it; `figure` is matplotlib's own, to be changed.

    `drawing` is that figure, or makes it when it is first asked for; None where there is a page alone. `page` makes the
    HTML of a picture that answers to the hand; without it the page shows the figure.
    """

    drawing: Any
    title: str
    page: Callable[[], str] | None = None

    @cached_property
    def figure(self) -> Any:
        """matplotlib's figure. Raises ValueError without matplotlib."""
        return self.drawing() if callable(self.drawing) else self.drawing

    @cached_property
    def html(self) -> str:
        """The whole page in one text, which opens without a network. Raises PageMissingError."""
        return pictured(self._drawn("svg"), self.title) if self.page is None else self.page()

    def save(self, path: str | Path) -> Path:
        """Write a .png, .svg, .pdf or .html file, aside and then moved into place.

        Raises ValueError for another kind, for where no file can be, and for a page that was not compiled.
        """
        path = Path(path).expanduser()
        if path.suffix not in FORMATS:
            raise ValueError(f"a figure is saved as {', '.join(FORMATS)}, got {path.name!r}")
        if path.is_dir() or not path.parent.is_dir():
            what = f"{path} is a folder" if path.is_dir() else f"there is no folder {path.parent}"
            raise ValueError(f"no figure can be saved there: {what}")
        content = self.html.encode() if path.suffix == ".html" else self._drawn(path.suffix[1:])
        aside = path.with_name(f".{path.name}.tmp")
        try:
            aside.write_bytes(content)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        return path

    def _repr_html_(self) -> str | None:
        """What a notebook shows first; without a page it shows the picture instead."""
        if self.page is None:
            return None
        try:
            return framed(self.html, self.title)
        except PageMissingError:
            return None

    def _repr_png_(self) -> bytes | None:
        if self.page is not None and (self.drawing is None or find_spec("matplotlib") is None):
            return None
        return self._drawn("png")

    def _drawn(self, kind: str) -> bytes:
        if self.figure is None:
            raise ValueError(f"this picture is a page: it is saved as .html, got .{kind}")
        held = BytesIO()
        self.figure.savefig(held, format=kind, dpi=120)
        return held.getvalue()

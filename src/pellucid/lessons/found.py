"""What a lesson is, and what it finds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..views import Table
from .drawing import Drawing

TEXT = "When Mary and John went to the store, John gave a drink to"


@dataclass(frozen=True, repr=False)
class Found:
    """The tables that answer a lesson's question, and the figure where there is one to draw."""

    tables: tuple[Table, ...]
    figure: Drawing | None = None

    def to_json(self) -> dict[str, Any]:
        """The tables as plain data."""
        return {"tables": [table.to_json() for table in self.tables]}

    def __str__(self) -> str:
        drawn = "" if self.figure is None else self.figure.text()
        return "\n\n".join([*map(str, self.tables), *filter(None, [drawn])])

    __repr__ = __str__


@dataclass(frozen=True)
class Lesson:
    """A claim of the lessons that can be computed: its name, and in one sentence what is found.

    `alone` answers it by itself, from nothing or from `numbers` (what these are, "" if it takes none). `on` answers it
    on traces of a model, one for each of its `texts`. Where there is only `on`, `any_model` says that a random model
    shows it as well as a trained one.
    """

    name: str
    summary: str
    alone: Callable[..., Found] | None = None
    on: Callable[..., Found] | None = None
    numbers: str = ""
    texts: tuple[str, ...] = (TEXT,)
    any_model: bool = False

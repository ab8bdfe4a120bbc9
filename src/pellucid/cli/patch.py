"""`pellucid patch`: where the difference between two texts is carried."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ..views import Table
from ..views.table import WIDTH, columns_of
from .options import Json, ModelName, Position, Source
from .progress import Advance, Task, bars
from .talk import as_text, open_model, print_json, read_prompt, trace_of

if TYPE_CHECKING:
    from ..inside.effects import Effects
    from ..inside.trace import Trace

_CELL = 8  # characters of a number such as -12.3456


Clean = Annotated[str, typer.Argument(metavar="CLEAN", help="The text with the answer.", show_default=False)]
Corrupted = Annotated[
    str, typer.Argument(metavar="CORRUPTED", help="The same with something else in it, as long.", show_default=False)
]
Answer = Annotated[
    str | None, typer.Option("--token", metavar="TEXT", help="The answer. [default: the most probable after CLEAN]")
]
Minus = Annotated[str | None, typer.Option("--minus", metavar="TEXT", help="Ask for its lead over this.")]
Sites = Annotated[str, typer.Option("--sites", metavar="PATTERN", help="What is patched, such as *.attention.heads.")]
Each = Annotated[
    str | None,
    typer.Option(
        "--each",
        metavar="PLACE",
        help="position, head, head,position or site. [default: head where all sites have heads, else position]",
    ),
]
Noising = Annotated[bool, typer.Option("--noising", help="Put CORRUPTED's values into the run of CLEAN.")]
Top = Annotated[int, typer.Option("--top", metavar="K", help="How many of the largest effects to name.")]


def patch(
    model: ModelName,
    clean: Clean,
    corrupted: Corrupted,
    token: Answer = None,
    minus: Minus = None,
    sites: Sites = "*.stream",
    each: Each = None,
    noising: Noising = False,
    position: Position = -1,
    source: Source = None,
    top: Top = 5,
    as_json: Json = False,
) -> None:
    """Say where the difference between two texts is carried.

    The run of CORRUPTED is given values of the run of CLEAN, one place at a time (activation patching). An effect of 0
    changes nothing, one of 1 brings back the whole difference in the answer's logit. Both texts must have as many
    tokens.
    """
    texts = [read_prompt(text, name) for text, name in ((clean, "CLEAN"), (corrupted, "CORRUPTED"))]
    words = [None if word is None else as_text(word, name) for word, name in ((token, "--token"), (minus, "--minus"))]
    opened = open_model(model)
    right, wrong = (trace_of(opened, text, source) for text in texts)
    ids = [None if word is None else right.id_of(word) for word in words]
    answer = right.top(1, position=position).column("id")[0] if ids[0] is None else ids[0]
    base, given = (right, wrong) if noising else (wrong, right)
    found = _swept(base, given, (answer, ids[1], position), (sites, each))
    if as_json:
        said = {"model": model, "clean": right.tokens(), "corrupted": wrong.tokens(), "token": answer, "minus": ids[1]}
        print_json({**said, "position": position, "noising": noising, **found.to_json()})
        return
    print(*blocks(found), found.top(top), sep="\n\n")


def _swept(
    base: "Trace", given: "Trace", asked: tuple[int, int | None, int], places: tuple[str, str | None]
) -> "Effects":
    """The effects on (token, minus, position), under the words of the tokens."""
    from ..inside.metrics import logit
    from ..inside.sweep import sweep
    from ..inside.sweep_work import SweepOptions

    with bars() as begin:
        options = SweepOptions(progress=telling(begin))
        found = sweep(base, given, places[0], metric=logit(*asked), each=places[1], options=options)
    if base.tokenizer is None:
        return found
    words = base.tokenizer.labels([token for token in asked[:2] if token is not None])
    return replace(found, title=f"effect on the logit of {' minus '.join(words)}")


def telling(begin: Task) -> Callable[[int, int], None]:
    """A sweep's progress as a bar, begun when the number of runs is known."""
    bar: list[Advance] = []
    told = [0]

    def tell(finished: int, size: int) -> None:
        if not bar:
            bar.append(begin("patching", size))
        bar[0](finished - told[0])
        told[0] = finished

    return tell


def blocks(found: "Effects", width: int = WIDTH) -> Iterator[Table]:
    """The grid, as many columns beside each other as fit a line; the title stands over the first."""
    grid = found.grid()
    names = max(map(columns_of, (*found.rows, grid.columns[0])))
    first, title = 1, found.title
    while first < len(grid.columns):
        last, used = first, names
        while last < len(grid.columns):
            used += 2 + max(_CELL, columns_of(grid.columns[last]))
            if used > width and last > first:
                break
            last += 1
        rows = tuple((row[0], *map(_rounded, row[first:last])) for row in grid)
        note = found.note if last == len(grid.columns) else ""
        yield Table(title, (grid.columns[0], *grid.columns[first:last]), rows, note)
        first, title = last, ""


def _rounded(value: object) -> float | None:
    return round(value, 3) if isinstance(value, float) else None

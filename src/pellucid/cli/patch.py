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

_CELL = 8  # characters of a number such as -12.3456


def patch(
    model: ModelName,
    clean: Annotated[str, typer.Argument(metavar="CLEAN", help="The text with the answer.", show_default=False)],
    corrupted: Annotated[
        str,
        typer.Argument(metavar="CORRUPTED", help="The same with something else in it, as long.", show_default=False),
    ],
    token: Annotated[
        str | None,
        typer.Option("--token", metavar="TEXT", help="The answer. [default: the most probable after CLEAN]"),
    ] = None,
    minus: Annotated[str | None, typer.Option("--minus", metavar="TEXT", help="Ask for its lead over this.")] = None,
    sites: Annotated[
        str, typer.Option("--sites", metavar="PATTERN", help="What is patched, such as *.attention.heads.")
    ] = "*.stream",
    each: Annotated[
        str | None,
        typer.Option(
            "--each",
            metavar="PLACE",
            help="position, head, head,position or site. [default: head where all sites have heads, else position]",
        ),
    ] = None,
    noising: Annotated[bool, typer.Option("--noising", help="Put CORRUPTED's values into the run of CLEAN.")] = False,
    position: Position = -1,
    source: Source = None,
    top: Annotated[int, typer.Option("--top", metavar="K", help="How many of the largest effects to name.")] = 5,
    as_json: Json = False,
) -> None:
    """Say where the difference between two texts is carried.

    The run of CORRUPTED is given values of the run of CLEAN, one place at a time (activation patching). An effect of 0
    changes nothing, one of 1 brings back the whole difference in the answer's logit. Both texts must have as many
    tokens.
    """
    texts = [read_prompt(text, name) for text, name in ((clean, "CLEAN"), (corrupted, "CORRUPTED"))]
    token, minus = (
        None if word is None else as_text(word, what) for word, what in ((token, "--token"), (minus, "--minus"))
    )
    opened = open_model(model)
    right, wrong = (trace_of(opened, text, source) for text in texts)
    from ..inside.metrics import logit
    from ..inside.sweep import sweep
    from ..inside.sweep_work import SweepOptions

    answer = right.top(1, position=position).column("id")[0] if token is None else right.id_of(token)
    other = None if minus is None else right.id_of(minus)
    base, given = (right, wrong) if noising else (wrong, right)
    metric = logit(answer, other, position)
    with bars() as begin:
        options = SweepOptions(progress=telling(begin))
        found = sweep(base, given, sites, metric=metric, each=each, options=options)
    names = [opened.tokenizer.labels([each])[0] for each in (answer, other) if opened.tokenizer and each is not None]
    found = replace(found, title=f"effect on the logit of {' minus '.join(names)}")
    if as_json:
        said = {"model": model, "clean": right.tokens(), "corrupted": wrong.tokens(), "token": answer, "minus": other}
        print_json({**said, "position": position, "noising": noising, **found.to_json()})
        return
    print(*blocks(found), found.top(top), sep="\n\n")


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

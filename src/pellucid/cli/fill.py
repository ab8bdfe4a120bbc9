"""`pellucid fill`: what stands behind a mask."""

from typing import Annotated

import typer

from ..views import Table
from .explain import with_bars
from .options import Json
from .talk import check_name, open_model, print_json, read_prompt

MODEL = "bert-base-uncased"


def fill(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] TEXT",
            help=f"A model ({MODEL} if none is named), and a text with [MASK] in it; - is stdin.",
        ),
    ],
    top: Annotated[int, typer.Option("--top", metavar="K", help="How many tokens to show for each mask.")] = 5,
    as_json: Json = False,
) -> None:
    """Say what stands behind each [MASK] of a text.

    For models that read in both directions and have a head that predicts tokens, as BERT has.
    """
    if len(words) > 2:
        raise ValueError(f"expected a model's name and a text in quotes, got {len(words)} arguments")
    model, text = words if len(words) == 2 else (MODEL, words[0])
    text = read_prompt(text)
    found = open_model(check_name(model)).fill(text, top)
    if as_json:
        print_json({"model": model, "prompt": text, **found.to_json()})
        return
    print(with_bars(_short(found), "probability", 12))


def _short(found: Table) -> Table:
    """The table without ids, which few people read."""
    at = found.columns.index("id")
    rows = tuple(row[:at] + row[at + 1 :] for row in found)
    return Table(found.title, found.columns[:at] + found.columns[at + 1 :], rows)

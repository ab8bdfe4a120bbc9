"""`pellucid heads`: what kind of head each one is."""

from typing import TYPE_CHECKING, Annotated

import typer

from ..views import Table
from .options import Json, ModelName
from .talk import layers_of, open_model, print_json, waiting

if TYPE_CHECKING:
    from ..inside.report_card import ReportCard

# What is shown of every head, under names short enough for a line.
SHORT = {
    "previous token": "prev",
    "next token": "next",
    "duplicate token": "dup",
    "induction": "induct",
    "first token": "first",
    "entropy": "entropy",
    "copying by eigenvalues": "copy",
}


def heads(
    model: ModelName,
    layers: Annotated[
        str, typer.Option("--layers", metavar="LIST", help="Show every head of these layers: 0,1,29 or 3-5 or all.")
    ] = "",
    strongest: Annotated[int, typer.Option("--strongest", metavar="K", help="How many heads of a kind to name.")] = 8,
    sequences: Annotated[int, typer.Option("--sequences", metavar="N", help="Rows of random tokens, repeated.")] = 4,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Which random tokens.")] = 0,
    as_json: Json = False,
) -> None:
    """Say what kind of head each one is.

    Every head is scored on a short prose, on random tokens, repeated and not, and on sentences with labelled words. A
    head is named after what it does more than any head of the model would if it looked at random. With --json all
    scores of all heads, each with its null.
    """
    opened = open_model(model, words=False)
    shown = layers_of(layers, opened.config.n_layers)
    with waiting(f"scoring {opened.config.n_layers * opened.config.n_heads} heads"):
        from ..inside.grading import report_card

        card = report_card(opened.transformer, opened.tokenizer, sequences=sequences, seed=seed)
    if as_json:
        print_json({"model": model, **card.to_json()})
        return
    tables = [by_kind(card, strongest), card.nulls()]
    if shown:
        tables.insert(1, every_head(card, shown))
    print(*tables, sep="\n\n")


def by_kind(card: "ReportCard", k: int) -> Table:
    """One line a kind: how many heads, the threshold, and the strongest of them as layer.head score."""
    rows, unnamed = [], sum(kinds.count("") for kinds in card.kinds)
    for found in card.measures:
        if not found.kind:
            continue
        named = card.of(found.kind)
        best = ", ".join(f"{layer}.{head} {score:.2f}" for layer, head, score, *_ in named.top(k))
        rows.append((found.kind, len(named), found.threshold, best))
    rows.append(("none of these", unnamed, None, ""))
    return Table("heads by kind", ("kind", "heads", "threshold", "strongest, as layer.head score"), tuple(rows))


def every_head(card: "ReportCard", layers: list[int]) -> Table:
    """One line a head, with the scores that name it."""
    last = {found.scores.name: found.scores for found in reversed(card.measures)}
    last |= {found.kind: found.scores for found in card.measures if found.kind}
    chosen = {short: last[name].table().column("score") for name, short in SHORT.items() if name in last}
    width = len(card.kinds[0])
    rows = tuple(
        (layer, head, card.kinds[layer][head], *(column[layer * width + head] for column in chosen.values()))
        for layer in layers
        for head in range(width)
    )
    return Table("heads", ("layer", "head", "kind", *chosen), rows)

"""`pellucid explain`: why the next token is what it is."""

from dataclasses import replace
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from ..views import Table, bar
from .options import Json, MaskOrLast, ModelName, Prompt, Source
from .talk import as_text, open_model, print_json, read_prompt, trace_of

if TYPE_CHECKING:
    from ..inside.ledger import Ledger
    from ..inside.trace import Trace

BAR = 21
WAYS = ("sublayer", "head")
FROZEN = "In the sums the scales of norms are held at their values in this run, which makes them exact."


Token = Annotated[
    str | None, typer.Option("--token", metavar="TEXT", help="The token to explain. [default: the most probable]")
]
Minus = Annotated[str | None, typer.Option("--minus", metavar="TEXT", help="Explain its lead over this token.")]
Top = Annotated[int, typer.Option("--top", metavar="K", help="How many next tokens to show.")]
Entries = Annotated[int, typer.Option("--entries", metavar="N", help="How many entries of a ledger to show.")]
Ways = Annotated[
    list[str] | None,
    typer.Option(
        "--by",
        metavar="WAY",
        help="Split the logit by sublayer, head, neuron, source (the position that attention brought it from), or "
        "'head and source'; may be repeated. [default: sublayer and head]",
        show_default=False,
    ),
]
Check = Annotated[bool, typer.Option("--check", help="Take the largest writers away, run again, and compare.")]


def explain(
    model: ModelName,
    prompt: Prompt,
    token: Token = None,
    minus: Minus = None,
    position: MaskOrLast = None,
    source: Source = None,
    top: Top = 5,
    entries: Entries = 15,
    by: Ways = None,
    check: Check = False,
    as_json: Json = False,
) -> None:
    """Say why the next token is what it is.

    The next tokens with their probabilities (of a model that fills masks: the tokens at the position); what each depth
    would say (logit lens); and the token's logit as a sum of what every sublayer and every head wrote for it. With
    --check the model is run again without the largest of these, one by one and together. With --json the ledgers hold
    every entry.
    """
    text = read_prompt(prompt)
    token = None if token is None else as_text(token, "--token")
    minus = None if minus is None else as_text(minus, "--minus")
    opened = open_model(model)
    trace = trace_of(opened, text, source)
    position = _usual_position(trace, opened.fills) if position is None else position
    ahead = trace.top(top, position=position)
    wanted = token if token is not None else ahead.column("id")[0]
    depths = trace.lens(wanted, position=position)
    ledgers = {way: _ledger(trace, wanted, minus, way, position) for way in by or WAYS}
    checks = {way: each.check() for way, each in ledgers.items()} if check else {}
    tokens, at = trace.tokens(), range(len(trace.tokens()))[position]
    if as_json:
        data = {"model": model, "prompt": text, "tokens": tokens, "position": at, "top": ahead.to_json()}
        data |= {"lens": depths.to_json(), "ledger": {way: each.to_json() for way, each in ledgers.items()}}
        print_json(data | ({"check": {way: each.to_json() for way, each in checks.items()}} if check else {}))
        return
    sums = [part for way in ledgers for part in (ledger_table(ledgers[way], entries), checks.get(way)) if part]
    shown = [with_bars(ahead, "probability"), lens_table(depths), *sums]
    print(fill(_asked(tokens, at, opened.fills), 80), *shown, fill(FROZEN, 80), sep="\n\n")


def _usual_position(trace: "Trace", fills: bool) -> int:
    """The first mask of a model that fills masks; else, or where there is none, the last token."""
    mask = trace.tokenizer.mask_id if fills and trace.tokenizer is not None else None
    ids = trace.ids[0].tolist()
    return ids.index(mask) if mask in ids else len(ids) - 1


def _asked(tokens: list[str], at: int, fills: bool) -> str:
    """What is read before the token in question; the whole text, with its place marked, where both sides are read."""
    if fills:
        return " ".join([*tokens[:at], f"» {tokens[at]} «", *tokens[at + 1 :]])
    return f"{' '.join(tokens[: at + 1])} → ?"


def _ledger(trace: "Trace", token: "str | int", minus: str | None, by: str, position: int) -> "Ledger":
    """Of the logit, or behind a prediction head of the direction that it reads, the head's activation frozen."""
    if trace.transformer.head is None:
        return trace.ledger(token, minus, by, position=position)
    found = trace.ledger(direction=trace.direction(token, minus, position=position), by=by, position=position)
    named = [_label(trace, each) for each in (token, minus) if each is not None]
    return replace(found, title=f"final stream along the direction of {' minus '.join(named)}")


def _label(trace: "Trace", token: "str | int") -> str:
    identity = trace.id_of(token)
    return str(identity) if trace.tokenizer is None else trace.tokenizer.labels([identity])[0]


def with_bars(table: Table, column: str, width: int = BAR) -> Table:
    """The table with bars beside it that are full at probability 1."""
    bars = [bar(value, 1.0, width, signed=False) for value in table.column(column)]
    rows = tuple((*row, drawn) for row, drawn in zip(table, bars, strict=True))
    return Table(table.title, (*table.columns, ""), rows, table.note)


def lens_table(table: Table) -> Table:
    """The lens in 80 columns: with a bar for the followed token, without sites (the depth says them) and divergence."""
    shown = [at for at, name in enumerate(table.columns) if name not in ("site", "KL")]
    followed = table.columns[4]
    rows = tuple(tuple(row[at] for at in shown) for row in table)
    shorter = Table(table.title, tuple(table.columns[at] for at in shown), rows, table.note)
    return with_bars(shorter, followed, 12)


def ledger_table(ledger: "Ledger", k: int) -> Table:
    """The largest entries and the sum of the others, then what they add up to beside the model's own logit."""
    table = ledger.top(k)
    amounts = table.column("amount")
    scale = max(map(abs, amounts))
    rows = [(name, amount, bar(amount, scale, BAR)) for (name, _), amount in zip(table, amounts, strict=True)]
    rows += [
        ("= sum of the above", ledger.total, None),
        ("+ remainder (rounding)", ledger.remainder, None),
        ("= what the model computed", ledger.value, None),
    ]
    return Table(f"{ledger.title}, by {ledger.by}", ("written by", "amount", ""), tuple(rows))

"""`pellucid trace`: every stage of the forward pass."""

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..views import Table, strip
from .options import Json, Layers, ModelName, Position, Prompt, Source
from .talk import layers_of, open_model, print_json, read_prompt, trace_of

if TYPE_CHECKING:
    from ..inside.stages import Stage
    from ..inside.trace import Trace

STRIP = 20


def trace(
    model: ModelName,
    prompt: Prompt,
    layers: Layers = "",
    sites: Annotated[
        list[str] | None,
        typer.Option(
            "--sites",
            metavar="PATTERN",
            help="Only these sites, '5.attention.*' or all: '*'; may be repeated.",
            show_default=False,
        ),
    ] = None,
    position: Position = -1,
    source: Source = None,
    values: Annotated[
        bool, typer.Option("--values", help="With --json, add every number at the position; -inf is null.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show every stage of the forward pass.

    In the order the data flows: each value's name, symbol, shape, its Euclidean norm at the position, and its values
    there as a strip (the largest of each run of neighbours). The first and the last layer are shown in full, of the
    others what they read, unless --layers or --sites choose.
    """
    text = read_prompt(prompt)
    found = trace_of(open_model(model), text, source)
    from ..inside.stages import stages

    chosen = _by_pattern(found, sites) if sites else _by_layer(found, layers)
    shown = stages(found, chosen, position=position)
    tokens = found.tokens()
    at = range(len(tokens))[position]
    if as_json:
        data = {"model": model, "prompt": text, "tokens": tokens, "position": at}
        print_json({**data, "stages": [_record(stage, values) for stage in shown]})
        return
    print(fill(f"{len(tokens)} tokens: {' '.join(tokens)}", 80), f"at position {at}: {tokens[at]}\n", sep="\n")
    print(table(shown))


def table(shown: "Sequence[Stage]") -> Table:
    """One line a stage; the batch, of one, is left out of the shapes."""
    rows = tuple(
        (
            stage.site.name,
            stage.site.symbol,
            "x".join(map(str, stage.shape[1:])),
            stage.norm,
            strip(stage.values.tolist(), STRIP),
        )
        for stage in shown
    )
    return Table("", ("site", "symbol", "shape", "norm", "values"), rows)


def _record(stage: "Stage", values: bool) -> dict[str, Any]:
    numbers = stage.values.tolist()
    record = {"site": stage.site.name, "symbol": stage.site.symbol, "shape": stage.shape, "norm": stage.norm}
    return {**record, "strip": strip(numbers, STRIP), **({"values": numbers} if values else {})}


def _by_pattern(found: "Trace", patterns: list[str]) -> list[str]:
    from ..inside.names import select

    return [name for pattern in patterns for name in select(pattern, found.names)]


def _by_layer(found: "Trace", text: str) -> list[str]:
    """All sites of the chosen layers, and the streams of the others."""
    from ..inside.names import layer_of

    last = found.transformer.config.n_layers
    full = layers_of(text or f"0,{last - 1}", last)
    return [
        name for name in found.names if layer_of(name) is None or layer_of(name) in full or name.endswith(".stream")
    ]

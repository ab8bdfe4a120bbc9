"""`pellucid edit`: what edits change, and a model that keeps them."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..views import Table
from .convert import write_folder
from .options import Json, MaxNewTokens, ModelName
from .talk import open_model, print_json, read_prompt, trace_of, waiting

if TYPE_CHECKING:
    from ..front import Model
    from ..inside.edits import Edit


EditsFile = Annotated[
    Path | None,
    typer.Option("--edits", metavar="FILE", help="A file of edits, as write_edits makes it.", show_default=False),
]
ZeroSites = Annotated[
    list[str] | None,
    typer.Option(
        "--zero", metavar="SITE", help="Set a site, or all of a pattern, to 0; may be repeated.", show_default=False
    ),
]
Heads = Annotated[str, typer.Option("--head", metavar="LIST", help="Only these heads of it: 6 or 0,3-5.")]
NeuronsOf = Annotated[str, typer.Option("--neuron", metavar="LIST", help="Only these neurons of it.")]
Positions = Annotated[str, typer.Option("--position", metavar="LIST", help="Only at these positions, from 0.")]
ShownOn = Annotated[
    str | None,
    typer.Option("--prompt", metavar="TEXT", help="A text to show the change on; - is stdin.", show_default=False),
]
Folder = Annotated[Path | None, typer.Option("--save", metavar="DIR", help="A folder to make.", show_default=False)]
Top = Annotated[int, typer.Option("--top", metavar="K", help="How many next tokens to show.")]


def edit(
    model: ModelName,
    edits: EditsFile = None,
    zero: ZeroSites = None,
    head: Heads = "",
    neuron: NeuronsOf = "",
    position: Positions = "",
    prompt: ShownOn = None,
    save: Folder = None,
    top: Top = 5,
    max_new_tokens: MaxNewTokens = 16,
    as_json: Json = False,
) -> None:
    """Say what edits change, and save a model that keeps them.

    With a prompt: the next tokens before and after, and the continuations. A model is saved with the edits in its
    weights where weights can say them exactly; elsewhere they are written to edits.json beside the weights.
    """
    text = None if prompt is None else read_prompt(prompt)
    if text is None and save is None:
        raise ValueError("give --prompt TEXT to see what the edits change, or --save DIR to keep them")
    opened = open_model(model, words=text is not None)
    chosen = _edits(opened, edits, zero or [], {"head": head, "neuron": neuron, "position": position})
    changed = opened.edited(*chosen)
    data: dict[str, Any] = {"model": model, "edits": [each.to_json() for each in chosen]}
    if text is not None:
        data |= {"prompt": text, "before": _seen(opened, text, top, max_new_tokens)}
        data["after"] = _seen(changed, text, top, max_new_tokens)
    if save is not None:
        data["saved"] = _save(save, model, changed.edits)
    if as_json:
        print_json({name: _plain(value) for name, value in data.items()})
    else:
        _print(data)


def _print(data: dict[str, Any]) -> None:
    if "before" in data:
        print(_beside(data["before"], data["after"]), end="\n\n")
        print(*(f"{when}: {data[when]['text']}" for when in ("before", "after") if data[when]["text"]), sep="\n")
    if "saved" in data:
        saved = data["saved"]
        print(f"{saved['out']}: {'edits in the weights' if not saved['why'] else 'edits.json: ' + saved['why']}")


def _edits(model: "Model", file: Path | None, sites: list[str], where: dict[str, str]) -> "list[Edit]":
    """The file's edits, then those of the options."""
    from ..inside.edit_files import read_edits
    from ..inside.edits import zero
    from ..inside.names import select
    from ..inside.reading import all_sites

    found = [] if file is None else list(read_edits(file))
    narrowed = {name: _numbers(f"--{name}", text) for name, text in where.items() if text}
    if narrowed and not sites:
        raise ValueError(f"--{next(iter(narrowed))} narrows what --zero SITE names, and no site was named")
    known = [site.name for site in all_sites(model.transformer)]
    found += [zero(name, **narrowed) for pattern in sites for name in select(pattern, known)]
    if not found:
        raise ValueError("there are no edits: name a site with --zero SITE, or a file of edits with --edits FILE")
    return found


def _numbers(option: str, text: str) -> list[int]:
    """The numbers that "6" or "0,3-5" name."""
    numbers: list[int] = []
    for part in text.replace(" ", "").split(","):
        ends = part.split("-")
        if len(ends) > 2 or not all(end.isdecimal() and len(end) < 7 for end in ends) or int(ends[0]) > int(ends[-1]):
            raise ValueError(f"{option} takes numbers and ranges such as 0,3-5; got {text!r}")
        numbers += range(int(ends[0]), int(ends[-1]) + 1)
    return list(dict.fromkeys(numbers))


def _seen(model: "Model", text: str, top: int, count: int) -> dict[str, Any]:
    """What a model says next, and how it goes on; of one that fills masks, what it fills in."""
    if model.fills:
        return {"next": model.fill(text, top), "text": ""}
    ahead = None if model.transformer.encoder is not None else trace_of(model, text, None).top(top)
    return {"next": ahead, "text": model.generate(text, temperature=0.0, max_new_tokens=count).text}


def _beside(before: dict[str, Any], after: dict[str, Any]) -> Table:
    """Both tables of tokens side by side."""
    one, other = before["next"], after["next"]
    if one is None:
        return Table("continuations", (), ())
    columns = [each.column(name) for each in (one, other) for name in ("token", "probability")]
    names = ("rank", "before", "probability", "after", "probability ")
    return Table(one.title, names, tuple(zip(range(1, len(one) + 1), *columns, strict=True)))


def _plain(value: Any) -> Any:
    if isinstance(value, Table):
        return value.to_json()
    return {name: _plain(each) for name, each in value.items()} if isinstance(value, dict) else value


def _save(out: Path, name: str, edits: "tuple[Edit, ...]") -> dict[str, Any]:
    """Save a model with edits in its weights, else with the edits beside them; `why` says why not in the weights."""
    with waiting(f"writing {out}"):
        from ..inside.baking import baked
        from ..inside.edit_files import edits_as_bytes
        from ..inside.errors import EditError
        from ..weights.loading import load_checkpoint

        checkpoint = load_checkpoint(name)
        if out.exists():
            raise ValueError(f"{out} is there already: choose another one")
        try:
            transformer, why = baked(checkpoint.transformer, edits), ""
        except EditError as error:
            transformer, why = checkpoint.transformer, str(error)
        checkpoint = replace(checkpoint, transformer=transformer)
        if not why:
            return {"out": str(out), "why": "", **write_folder(out, checkpoint, "")}
        return {"out": str(out), "why": why, **write_folder(out, checkpoint, "", edits_as_bytes(edits))}

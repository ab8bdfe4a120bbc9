"""`pellucid lesson`: one claim of the lessons, computed."""

from typing import TYPE_CHECKING, Annotated

import typer

from ..views import Table
from .options import FORMS, Json
from .talk import check_name, open_model, print_json, read_prompt, trace_of, waiting

if TYPE_CHECKING:
    from ..lessons import Found, Lesson


def _check(name: str | None) -> str | None:
    return None if name is None else check_name(name)


Name = Annotated[str | None, typer.Argument(metavar="NAME", help="Which lesson; none lists them.")]
Model = Annotated[str | None, typer.Argument(metavar="MODEL", help=f"A {FORMS}.", callback=_check)]
Texts = Annotated[
    list[str] | None,
    typer.Option("--text", metavar="TEXT", help="What the model reads; twice where two are compared; - is stdin."),
]
Numbers = Annotated[
    str | None, typer.Option("--numbers", metavar="LIST", help="The numbers to show it on, as 2,4,4,5.")
]
Save = Annotated[
    str | None, typer.Option("--save", metavar="FIGURE", help="Write the figure, a .png, .svg or .pdf file.")
]


def lesson(
    name: Name = None,
    model: Model = None,
    text: Texts = None,
    numbers: Numbers = None,
    save: Save = None,
    as_json: Json = False,
) -> None:
    """Compute one claim of the lessons, and draw it.

    Without a name the lessons are listed. With MODEL it is computed on that model's own numbers, without on the worked
    example or on a small random model, as far as the lesson has one.
    """
    from ..lessons import lesson as find

    if name is None:
        for option, given in (("--text", text), ("--numbers", numbers), ("--save", save)):
            if given is not None:
                raise ValueError(f"{option} is for one lesson: name it; without a name the lessons are listed")
        _list(as_json)
        return
    chosen = find(name)
    found = _found(chosen, model, text or [], numbers)
    saved = None
    if save is not None:
        if found.figure is None:
            raise ValueError(f"the lesson {name} has no figure to save")
        saved = str(found.figure.plot().save(save))
    if as_json:
        print_json({"lesson": name, "model": model, **found.to_json(), "figure": saved})
        return
    print(found)


def _found(chosen: "Lesson", model: str | None, texts: list[str], numbers: str | None) -> "Found":
    if numbers is not None and (model is not None or not chosen.numbers):
        kind = "takes no numbers" if not chosen.numbers else "takes numbers or a model, not both"
        raise ValueError(f"the lesson {chosen.name} {kind}: leave out --numbers")
    if model is not None:
        return _on_model(chosen, model, texts)
    if texts:
        raise ValueError("--text is what a model reads: name the model too")
    if chosen.alone is not None:
        return chosen.alone() if numbers is None else chosen.alone(_parsed(numbers))
    if not chosen.any_model or chosen.on is None:
        raise ValueError(f"the lesson {chosen.name} looks into a trained model: pellucid lesson {chosen.name} MODEL")
    from ..lessons.small import random_trace

    return chosen.on(*(random_trace(seed + 1) for seed in range(len(chosen.texts))))


def _on_model(chosen: "Lesson", model: str, texts: list[str]) -> "Found":
    if chosen.on is None:
        raise ValueError(f"the lesson {chosen.name} is computed without a model: leave out {model}")
    if texts and len(texts) != len(chosen.texts):
        raise ValueError(f"the lesson {chosen.name} takes --text {len(chosen.texts)} times, got {len(texts)}")
    read = [read_prompt(text, "--text") for text in texts] or list(chosen.texts)
    opened = open_model(model)
    if opened.transformer.encoder is not None:
        raise ValueError(f"{model} has an encoder beside its decoder, and lessons read one text at a time")
    with waiting(f"computing {chosen.name}"):
        return chosen.on(*(trace_of(opened, text, None) for text in read))


def _parsed(numbers: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in numbers.split(","))
    except ValueError:
        raise ValueError(f"--numbers takes numbers with commas between them, as 2,4,4,5; got {numbers!r}") from None


def _list(as_json: bool) -> None:
    from ..lessons import LESSONS

    rows = tuple((each.name, each.summary, _takes(each)) for each in LESSONS)
    note = "pellucid lesson NAME; with MODEL where it is listed, in brackets where it can be left out."
    table = Table("lessons", ("name", "what is found", "takes"), rows, note)
    if as_json:
        print_json({"lessons": [{"name": name, "summary": said, "takes": takes} for name, said, takes in rows]})
        return
    print(table)


def _takes(each: "Lesson") -> str:
    model = "" if each.on is None else "[MODEL]" if each.alone is not None or each.any_model else "MODEL"
    return " ".join(filter(None, [model, "[--numbers]" if each.numbers else ""]))

"""Arguments and options that several commands share."""

from typing import Annotated

import typer

from .talk import check_name, check_not_empty

FORMS = "known name, a folder, a .gguf, .bin, .pt or mapping (.toml) file, or a hub name"
ModelName = Annotated[
    str,
    typer.Argument(metavar="MODEL", help=f"A {FORMS}.", callback=check_name, show_default=False),
]
ShapeName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help=f"A preset's name (gpt2-xl), a {FORMS}.",
        callback=check_not_empty,
        show_default=False,
    ),
]
Prompt = Annotated[
    str,
    typer.Argument(
        metavar="PROMPT", help="The text; - reads it from stdin, less one final newline.", show_default=False
    ),
]
Source = Annotated[
    str | None,
    typer.Option(
        "--source", metavar="TEXT", help="What an encoder-decoder's encoder reads; - is stdin.", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Layers = Annotated[str, typer.Option("--layers", metavar="LIST", help="Layers to show in full: 0,1,29 or 3-5 or all.")]
Position = Annotated[int, typer.Option("--position", metavar="N", help="The token to look at, from 0; -1 is the last.")]
MaskOrLast = Annotated[
    int | None,
    typer.Option(
        "--position",
        metavar="N",
        help="The token to look at, from 0; -1 is the last. [default: the last; where masks are filled the first mask]",
        show_default=False,
    ),
]

Temperature = Annotated[
    float, typer.Option("--temperature", metavar="X", help="0 takes the most probable token; above, tokens are drawn.")
]
TopK = Annotated[int, typer.Option("--top-k", metavar="K", help="Draw from the K most probable tokens; 0: from all.")]
TopP = Annotated[
    float, typer.Option("--top-p", metavar="P", help="Draw from the fewest tokens that hold the probability P.")
]
MinP = Annotated[
    float, typer.Option("--min-p", metavar="P", help="Draw from tokens at least P times as probable as the first.")
]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", metavar="N", help="Stop after N tokens.")]
Seed = Annotated[
    int | None, typer.Option("--seed", metavar="N", help="Draw the same tokens every time.", show_default=False)
]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="TEXT", help="End before this text; may be repeated.", show_default=False),
]

"""`pellucid chat`: talk with a model."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Json, MaxNewTokens, MinP, ModelName, Seed, Stop, Temperature, TopK, TopP
from .talk import as_text, check_stdin, open_model, print_json

if TYPE_CHECKING:
    from ..front import Model
    from ..generation.sampling import Sampling

QUIT = "/quit"


def chat(
    model: ModelName,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="What the model is told first.", show_default=False)
    ] = None,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    max_new_tokens: MaxNewTokens = 512,
    seed: Seed = None,
    stop: Stop = None,
    as_json: Json = False,
) -> None:
    """Talk with a model.

    Every line of stdin is a message, answered in the model's own chat template; the end of the input or /quit ends the
    conversation. With --json the whole conversation is printed when it has ended.
    """
    messages = [{"role": "system", "content": as_text(system, "--system")}] if system is not None else []
    opened = open_speaker(model)
    from ..generation.sampling import Sampling

    sampling = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        max_new_tokens=max_new_tokens,
        seed=seed,
        stop=tuple(as_text(text, "--stop") for text in stop or ()),
    )
    for line in lines():
        messages.append({"role": "user", "content": line})
        messages.append({"role": "assistant", "content": answer(opened, messages, sampling, quiet=as_json)})
    if as_json:
        print_json({"model": model, "messages": messages})


def open_speaker(name: str) -> "Model":
    """Load a model. Raises ValueError for one without a chat template."""
    model = open_model(name)
    if model.tokenizer is None or model.tokenizer.chat_template is None:
        raise ValueError(f"{name} has no chat template: it was not made to talk; pellucid run continues a text with it")
    return model


def lines() -> Iterator[str]:
    """The user's messages: lines of stdin that are not blank, after a prompt where a person types them."""
    check_stdin()
    typed = sys.stdin.isatty()
    if typed:
        import readline  # noqa: F401  (gives the prompt its line editing)
    while True:
        try:
            line = input("> " if typed else "").strip()
        except EOFError:
            return
        if line == QUIT:
            return
        if line:
            yield line


def answer(model: "Model", messages: list[dict[str, str]], sampling: "Sampling", quiet: bool) -> str:
    """The model's answer, written to stdout as it comes unless `quiet`."""
    text = ""
    for piece in model.stream(model.encode_chat(messages), sampling):
        text += piece.text
        if not quiet:
            sys.stdout.write(piece.text)
            sys.stdout.flush()
    if not quiet:
        print()
    return text

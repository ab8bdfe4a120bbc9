"""What a tokenizer's post-processor puts around a text."""

import tokenizers

from .errors import TextError, one_line
from .library import check_id, state_of

Frame = tuple[tuple[int, ...], tuple[int, ...]]


def framing(library: tokenizers.Tokenizer, where: str) -> Frame:
    """The ids put before and after a single text."""
    try:
        return frame_of(state_of(library.post_processor), library, where)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, TextError):
            raise
        raise TextError(f"{where}: post_processor: cannot be understood: {one_line(repr(error))}") from error


def frame_of(state: dict, library: tokenizers.Tokenizer, where: str) -> Frame:
    match state.get("type"):
        case None | "ByteLevel":
            return (), ()
        case "Sequence":
            opening, closing = (), ()
            for inner in state["processors"]:
                before, after = frame_of(inner, library, where)
                opening, closing = before + opening, closing + after
            return opening, closing
        case "BertProcessing" | "RobertaProcessing":
            (opening, opening_id), (closing, closing_id) = state["cls"], state["sep"]
            check_id(library, opening, opening_id, where)
            check_id(library, closing, closing_id, where)
            return (opening_id,), (closing_id,)
        case "TemplateProcessing":
            return template_frame(state, library, where)
        case kind:
            raise TextError(f"{where}: post_processor: {one_line(kind, 60)} is not known")


def template_frame(state: dict, library: tokenizers.Tokenizer, where: str) -> Frame:
    opening: list[int] = []
    closing: list[int] = []
    texts = 0
    for piece in state["single"]:
        if "Sequence" in piece:
            texts += 1
            continue
        token = state["special_tokens"][piece["SpecialToken"]["id"]]
        for text, id in zip(token["tokens"], token["ids"], strict=True):
            check_id(library, text, id, where)
        (closing if texts else opening).extend(token["ids"])
    if texts != 1:
        raise TextError(f"{where}: post_processor: expected a template with one place for the text, got {texts}")
    return tuple(opening), tuple(closing)

"""What a tokenizer's post-processor puts around a text, and around and between two."""

from dataclasses import dataclass, replace

import tokenizers

from .errors import TextError, one_line
from .library import check_id, state_of
from .settings import Settings


@dataclass(frozen=True)
class Frame:
    """The ids before and after a single text, and how two are joined: (id, type of token), None for a text."""

    opening: tuple[int, ...] = ()
    closing: tuple[int, ...] = ()
    pair: tuple[tuple[int | None, int], ...] = ()

    def around(self, inner: "Frame") -> "Frame":
        """This frame put around what another frames."""
        pair = inner.pair
        if self.pair and pair:
            raise TextError("post_processor: expected one way to join two texts, got two")
        return Frame(self.opening + inner.opening, inner.closing + self.closing, self.pair or pair)


def framed(settings: Settings, frame: Frame) -> Settings:
    """The settings with what is put around a text; a BOS that is put first is `adds_bos`."""
    adds_bos = settings.bos_id is not None and frame.opening[:1] == (settings.bos_id,)
    opening = frame.opening[adds_bos:]
    return replace(settings, adds_bos=adds_bos, opening=opening, closing=frame.closing, pair=frame.pair)


def bert_frame(cls_id: int, sep_id: int) -> Frame:
    """BERT's: [CLS] a [SEP], and [CLS] a [SEP] b [SEP] with the second text and its [SEP] of type 1."""
    pair = ((cls_id, 0), (None, 0), (sep_id, 0), (None, 1), (sep_id, 1))
    return Frame((cls_id,), (sep_id,), pair)


def roberta_frame(bos_id: int, eos_id: int) -> Frame:
    """RoBERTa's: <s> a </s>, and <s> a </s></s> b </s>, all of type 0."""
    ids = (bos_id, None, eos_id, eos_id, None, eos_id)
    return Frame((bos_id,), (eos_id,), tuple((id, 0) for id in ids))


def framing(library: tokenizers.Tokenizer, where: str) -> Frame:
    """What the library's post-processor does."""
    try:
        return frame_of(state_of(library.post_processor), library, where)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, TextError):
            raise
        raise TextError(f"{where}: post_processor: cannot be understood: {one_line(repr(error))}") from error


def frame_of(state: dict, library: tokenizers.Tokenizer, where: str) -> Frame:
    match state.get("type"):
        case None | "ByteLevel":
            return Frame()
        case "Sequence":
            frame = Frame()
            for inner in state["processors"]:
                frame = frame_of(inner, library, where).around(frame)
            return frame
        case "BertProcessing" | "RobertaProcessing" as kind:
            (opening, opening_id), (closing, closing_id) = state["cls"], state["sep"]
            check_id(library, opening, opening_id, where)
            check_id(library, closing, closing_id, where)
            return (bert_frame if kind == "BertProcessing" else roberta_frame)(opening_id, closing_id)
        case "TemplateProcessing":
            return template_frame(state, library, where)
        case kind:
            raise TextError(f"{where}: post_processor: {one_line(kind, 60)} is not known")


def template_frame(state: dict, library: tokenizers.Tokenizer, where: str) -> Frame:
    single = template_of(state, "single", library, where)
    texts = [place for place, (id, _) in enumerate(single) if id is None]
    if len(texts) != 1:
        raise TextError(f"{where}: post_processor: expected a template with one place for the text, got {len(texts)}")
    ids = [id for id, _ in single if id is not None]
    pair = template_of(state, "pair", library, where)
    order = [piece["Sequence"]["id"] for piece in state["pair"] if "Sequence" in piece]
    return Frame(tuple(ids[: texts[0]]), tuple(ids[texts[0] :]), tuple(pair) if order == ["A", "B"] else ())


def template_of(state: dict, name: str, library: tokenizers.Tokenizer, where: str) -> list[tuple[int | None, int]]:
    """A template's pieces: (id, type of token), None for the id of a text."""
    found: list[tuple[int | None, int]] = []
    for piece in state[name]:
        if "Sequence" in piece:
            found.append((None, int(piece["Sequence"]["type_id"])))
            continue
        token = state["special_tokens"][piece["SpecialToken"]["id"]]
        for text, id in zip(token["tokens"], token["ids"], strict=True):
            check_id(library, text, id, where)
            found.append((id, int(piece["SpecialToken"]["type_id"])))
    return found

"""A tokenizer as Hugging Face's files: tokenizer.json, and tokenizer_config.json, which names what single tokens are
for and holds the chat template."""

import json
from typing import Any

from .coder import Coder, LibraryCoder
from .errors import TextError
from .piece_coder import PieceCoder
from .piece_json import state_of_pieces
from .settings import Settings


def files_of(coder: Coder, settings: Settings) -> dict[str, bytes]:
    """The contents of the two files by name: see `Tokenizer.to_files`."""
    if isinstance(coder, LibraryCoder):
        state = json.loads(coder.source)
    elif isinstance(coder, PieceCoder):
        state = state_of_pieces(coder.model)
    else:
        raise TextError("no tokenizer.json does what a Marian vocabulary does. Keep its own files")
    state["post_processor"] = processor(coder, settings)
    template, typed = settings.chat_template, any(kind for _, kind in settings.pair)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **names(coder, settings, state["model"].get("unk_token")),
        **({"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]} if typed else {}),
        **({} if template is None else {"chat_template": template.source}),
    }
    return {"tokenizer.json": written(state), "tokenizer_config.json": written(config)}


def written(values: dict[str, Any]) -> bytes:
    return (json.dumps(values, ensure_ascii=False, indent=2) + "\n").encode()


def names(coder: Coder, settings: Settings, unknown: str | None) -> dict[str, str]:
    """The texts of tokens with a task. Further ends of a text stand in generation_config.json."""
    said = {} if settings.chat_template is None else dict(settings.chat_template.special_tokens)
    ids = {"bos": settings.bos_id, "pad": settings.pad_id, "cls": settings.cls_id, "sep": settings.sep_id}
    ids |= {"eos": next(iter(settings.eos_ids), None), "mask": settings.mask_id}
    found = {f"{name}_token": coder.token(id) for name, id in ids.items() if id is not None}
    found["unk_token"] = unknown or said.get("unk_token")
    return {name: text for name, text in found.items() if text is not None}


def processor(coder: Coder, settings: Settings) -> dict[str, Any] | None:
    """What is put around a text, and around and between two."""
    first = (settings.bos_id,) if settings.adds_bos else ()
    before, after = (*first, *settings.opening), settings.closing
    if not (before or after or settings.pair):
        return None
    single = [*((id, 0) for id in before), (None, 0), *((id, 0) for id in after)]
    pair = settings.pair or [*single, *((id, 1) for id, _ in single)]
    ids = {id for id, _ in (*single, *pair) if id is not None}
    texts = {id: coder.token(id) for id in ids}

    def pieces(template: Any) -> list[dict[str, Any]]:
        letters = iter("AB")
        return [
            {"Sequence": {"id": next(letters), "type_id": kind}}
            if id is None
            else {"SpecialToken": {"id": texts[id], "type_id": kind}}
            for id, kind in template
        ]

    tokens = {texts[id]: {"id": texts[id], "ids": [id], "tokens": [texts[id]]} for id in sorted(ids)}
    return {"type": "TemplateProcessing", "single": pieces(single), "pair": pieces(pair), "special_tokens": tokens}

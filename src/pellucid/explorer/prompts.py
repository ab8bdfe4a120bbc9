"""From what a request holds to what a model reads, within the server's limits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..front import Model
from ..front.prompting import Prompting
from ..inside.edit_files import edit_from
from ..inside.edits import Edit
from ..inside.plan import plan
from ..inside.reading import state_sites
from ..model.config import Config
from ..model.transformer import Transformer
from .bodies import Prompt
from .refusals import RefusedError, over
from .settings import Settings


@dataclass(frozen=True, eq=False)
class Read:
    """A prompt as a model reads it: ids, those of the encoder's text, and edits."""

    text: str
    ids: list[int]
    source: list[int] | None
    edits: tuple[Edit, ...]


def check_sizes(prompt: Prompt, settings: Settings) -> None:
    """Refuse what is too long before anything is made of it."""
    if (prompt.text is None) == (prompt.ids is None):
        raise ValueError("a prompt is a text or ids: give one of the two")
    for what, text in (("text", prompt.text), ("source", prompt.source)):
        if text is not None and len(text) > settings.characters:
            raise over("too_many_characters", f"characters of {what}", len(text), settings.characters)
    if prompt.ids is not None and len(prompt.ids) > settings.tokens:
        raise over("too_many_tokens", "tokens", len(prompt.ids), settings.tokens)
    if len(prompt.edits) > settings.edits:
        raise over("too_many_edits", "edits", len(prompt.edits), settings.edits)


def read(prompt: Prompt, model: Model, settings: Settings) -> Read:
    """What the model reads. Raises RefusedError or ValueError for what it cannot."""
    words = Prompting(model.transformer, model.tokenizer, model.name, model.start_id)
    ids = list(prompt.ids) if prompt.ids is not None else _ids(prompt.text or "", words, model)
    _check(ids, "tokens", model.config, settings)
    source = _source(prompt, words)
    if source is not None and model.config.encoder is not None:
        _check(source, "tokens of source", model.config.encoder, settings)
    edits = tuple(edit_from(each, f"edit {number}") for number, each in enumerate(prompt.edits))
    plan(model.transformer, (*model.edits, *edits))
    text = prompt.text if prompt.text is not None else _text(ids, model)
    return Read(text, ids, source, edits)


def bytes_of(transformer: Transformer, ids: Sequence[int], source: Sequence[int] | None) -> int:
    """What a run of this length will hold."""
    size = transformer.W_U.element_size()
    own = len(state_sites(transformer)) * len(ids) * transformer.config.d_model * size
    if transformer.encoder is None or source is None:
        return own
    return own + bytes_of(transformer.encoder, source, None)


def said(edits: Sequence[Edit]) -> list[dict[str, Any]]:
    """Edits as plain data, the same for equal ones."""
    return [{**edit.to_json(), "factor": float(edit.factor)} for edit in edits]


def _ids(text: str, words: Prompting, model: Model) -> list[int]:
    if model.transformer.encoder is not None:
        return words.answers(text)
    ids = words.words.encode(text, special=model.fills)
    if not ids and words.words.bos_id is not None:
        return [words.words.bos_id]
    return ids


def _source(prompt: Prompt, words: Prompting) -> list[int] | None:
    if words.transformer.encoder is None:
        if prompt.source is not None:
            raise ValueError(f"{words.name} has no encoder: it takes no source text")
        return None
    if prompt.source is None:
        raise ValueError(f"{words.name} has an encoder, which reads a text of its own: give it as source")
    return words.ids(prompt.source)


def _check(ids: Sequence[int], what: str, config: Config, settings: Settings) -> None:
    if not ids:
        raise RefusedError(400, "empty", f"there are no {what}, and the model has none that begins a text: give some")
    if len(ids) > settings.tokens:
        raise over("too_many_tokens", what, len(ids), settings.tokens)
    if len(ids) > config.context_length:
        raise too_long(f"{what} for the model's context", len(ids), config.context_length)
    if wrong := next((id for id in ids if not 0 <= id < config.vocab_size), None):
        raise ValueError(f"{what} lie in 0..{config.vocab_size - 1}, got {wrong}")


def too_long(what: str, got: int, most: int) -> RefusedError:
    """The refusal of what the model's context does not hold."""
    return over("context_length_exceeded", what, got, most)


def _text(ids: Sequence[int], model: Model) -> str:
    if model.tokenizer is None:
        return ""
    return model.tokenizer.decode([id for id in ids if model.tokenizer.has_text(id)])

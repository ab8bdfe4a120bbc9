"""Values of a GGUF file's metadata that tokenizers need, checked."""

from collections.abc import Mapping

from .errors import TextError, one_line
from .library import MOST_TOKENS
from .pieces import Kind

GGML = "tokenizer.ggml."


def kinds_of(metadata: Mapping[str, object], number: int) -> list[int]:
    """What each token is for; files without the list have normal tokens only."""
    key = GGML + "token_type"
    if key not in metadata:
        return [Kind.NORMAL] * number
    kinds = list_under(metadata, key)
    if len(kinds) != number or set(map(type, kinds)) - {int}:
        raise TextError(f"{key}: expected {number} whole numbers, one for each token, got {len(kinds)} values")
    return kinds


def scores_of(metadata: Mapping[str, object], number: int) -> list[float]:
    key = GGML + "scores"
    scores = list_under(metadata, key)
    if len(scores) != number or set(map(type, scores)) - {int, float}:
        raise TextError(f"{key}: expected {number} numbers, one for each token, got {len(scores)} values")
    return [float(score) for score in scores]


def text_under(metadata: Mapping[str, object], key: str) -> str:
    value = metadata.get(key)
    if not isinstance(value, str):
        raise TextError(f"{key}: expected a text, got {'nothing' if value is None else one_line(repr(value), 60)}")
    return value


def texts_under(metadata: Mapping[str, object], key: str) -> list[str]:
    values = list_under(metadata, key)
    if set(map(type, values)) - {str}:
        raise TextError(f"{key}: expected a list of texts, but not all of its values are texts")
    return values


def list_under(metadata: Mapping[str, object], key: str) -> list:
    value = metadata.get(key)
    if not isinstance(value, list | tuple):
        raise TextError(f"{key}: expected a list, got {'nothing' if value is None else one_line(repr(value), 60)}")
    if len(value) > MOST_TOKENS:
        raise TextError(f"{key}: {len(value)} values, at most {MOST_TOKENS} are read")
    return list(value)

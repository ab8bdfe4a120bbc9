"""The ids among a checkpoint's own settings for generating text (generation_config.json, older config.json)."""

from collections.abc import Mapping
from typing import Any

from ..model.config import Config
from .errors import CheckpointError
from .files import shown

_LISTS = ("suppress_tokens", "begin_suppress_tokens")
_NO_PAD = -1  # how the first LLaMA releases say that they have no id for padding


def check_generation(settings: Mapping[str, Any], where: object, config: Config | None = None) -> None:
    """Refuse ids that no vocabulary has. Raises CheckpointError that names `where` and the field.

    With an encoder-decoder's `config`, the id that its answers begin with must also be one of its vocabulary's.
    """
    for name, value in settings.items():
        ids = value if isinstance(value, list) else [value]
        if value is None or (name == "pad_token_id" and value == _NO_PAD):
            continue
        if name == "bad_words_ids":
            ids = [id for word in ids for id in (word if isinstance(word, list) else [word])]
        elif not (name in _LISTS or name.endswith("_token_id")):
            continue
        if not all(type(id) is int and id >= 0 for id in ids):
            raise CheckpointError(
                f"{where}: {name} must be a token id or a list of them, whole numbers from 0, got {shown([value])}"
            )
    start = settings.get("decoder_start_token_id")
    if start is None or config is None or config.encoder is None:
        return
    if not isinstance(start, int) or start >= config.vocab_size:
        raise CheckpointError(
            f"{where}: decoder_start_token_id must be an id of the decoder's vocabulary, below {config.vocab_size}, "
            f"got {shown([start])}"
        )

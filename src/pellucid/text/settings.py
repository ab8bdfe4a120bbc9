"""What a checkpoint says about its tokenizer beside the vocabulary."""

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import TextError, one_line
from .template import ChatTemplate


@dataclass(frozen=True)
class Settings:
    """The ids with a task, what is put around a text, and the chat template.

    `opening` and `closing` are the ids put before (after BOS, if that is added) and after every text, as BERT's [CLS]
    and [SEP]. `pair` says how two texts are joined, in order: (id, type of token), with None for the id of a text.
    """

    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    pad_id: int | None = None
    cls_id: int | None = None
    sep_id: int | None = None
    mask_id: int | None = None
    adds_bos: bool = False
    opening: tuple[int, ...] = ()
    closing: tuple[int, ...] = ()
    pair: tuple[tuple[int | None, int], ...] = ()
    chat_template: ChatTemplate | None = None

    def opened(self, ids: list[int], bos: bool | None) -> list[int]:
        """The ids with BOS before them, once, if it is wanted; None is the checkpoint's own setting."""
        wanted, first = self.adds_bos if bos is None else bos, self.bos_id
        if wanted and first is None and not self.opening:
            raise TextError("this tokenizer has no token that begins a sequence: encode with bos=False")
        return [first, *ids] if wanted and first is not None and ids[:1] != [first] else ids

    def framed(self, ids: list[int], bos: bool | None) -> list[int]:
        """The ids of a text with BOS, and with what is put around every text."""
        return [*self.opened([*self.opening, *ids], bos), *self.closing]


def id_list(value: object, where: str) -> tuple[int, ...]:
    """The ids under a key that may hold one id, a list of them, or nothing."""
    values = value if isinstance(value, list | tuple) else [] if value is None else [value]
    ids = [each for each in values if isinstance(each, int) and not isinstance(each, bool) and each >= 0]
    if len(ids) < len(values):
        raise TextError(f"{where}: expected a token id or a list of them, got {one_line(value, 60)}")
    return tuple(dict.fromkeys(ids))


def flag(settings: Mapping[str, object], key: str, where: str) -> bool | None:
    """The truth value under a key, None where there is none."""
    value = settings.get(key)
    if value is not None and not isinstance(value, bool):
        raise TextError(f"{where}: {key}: expected true or false, got {one_line(value, 60)}")
    return value

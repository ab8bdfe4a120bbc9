"""Conversations to ids, with what people wrote kept from becoming control tokens.

Before the template is run, the first character of every control token written out in a message is replaced by a
stand-in, a private-use character that occurs nowhere in the conversation. In the text that the template writes, what
still reads as a control token is the template's own. Between those, stand-ins become their characters again, and the
pieces are encoded as plain text.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from .characters import sound
from .coder import Coder, Encoded
from .errors import TextError

# Where people write freely. Text there may also not complete a control token together with the template's own, while a
# role may: templates write "<|" + role + "|>".
FREE_TEXT = frozenset({"content", "text", "reasoning_content", "thinking"})
PRIVATE_USE = range(0xE000, 0xF900)


class Controls:
    """The texts of a vocabulary's control tokens, and where they occur."""

    def __init__(self, texts: Iterable[str]):
        self.texts = sorted(filter(None, texts), key=len, reverse=True)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(f"(?={'|'.join(map(re.escape, self.texts))})")

    @cached_property
    def _beginnings(self) -> frozenset[str]:
        return frozenset(text[:end] for text in self.texts for end in range(1, len(text)))

    @cached_property
    def _endings(self) -> frozenset[str]:
        return frozenset(text[start:] for text in self.texts for start in range(1, len(text)))

    def starts_in(self, text: str) -> set[int]:
        """Where control tokens start in the text, those that overlap among them."""
        return {match.start() for match in self._pattern.finditer(text)} if self.texts else set()

    def edges_of(self, text: str) -> set[int]:
        """Where a text could become part of a control token together with what is written before and after it."""
        longest = len(self.texts[0]) if self.texts else 0
        sizes = range(1, min(len(text) + 1, longest))
        found = {len(text) - size for size in sizes if text[-size:] in self._beginnings}
        within = len(text) < longest and any(text in control for control in self.texts)
        if text and (within or any(text[:size] in self._endings for size in sizes)):
            found.add(0)
        return found


class Disguise:
    """The stand-ins of one conversation. `template` is the source of its chat template, which may hold such characters
    of its own."""

    def __init__(self, controls: Controls, template: str, conversation: object):
        self._controls, self._template, self._conversation = controls, template, conversation
        self._stand_ins: dict[str, str] = {}

    def hide(self, value: Any, free: bool = False) -> Any:
        """A copy of the value, in which no string holds a control token."""
        if isinstance(value, str):
            return self._hidden(sound(value), free)
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(each, key in FREE_TEXT) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(each, free) for each in value]
        return value

    def restore(self, text: str) -> str:
        """The text with its own characters again, also where a template wrote them as JSON escapes."""
        for character, stand_in in self._stand_ins.items():
            text = text.replace(stand_in, character).replace(escaped(stand_in), escaped(character))
        return text

    def _hidden(self, text: str, free: bool) -> str:
        places = self._controls.starts_in(text)
        if free:
            # Templates trim what they are given.
            trimmed, before = text.strip(), len(text) - len(text.lstrip())
            places |= self._controls.edges_of(text) | {before + edge for edge in self._controls.edges_of(trimmed)}
        if not places:
            return text
        characters = list(text)
        for place in places:
            characters[place] = self._stand_in(text[place])
        return "".join(characters)

    def _stand_in(self, character: str) -> str:
        if character not in self._stand_ins:
            taken = {*self._everything, *self._stand_ins.values()}
            free = (chr(code) for code in PRIVATE_USE if chr(code) not in taken)
            stand_in = next((each for each in free if escaped(each) not in self._everything), None)
            if stand_in is None:
                raise TextError(f"the conversation uses all {len(PRIVATE_USE)} private-use characters of Unicode")
            self._stand_ins[character] = stand_in
        return self._stand_ins[character]

    @cached_property
    def _everything(self) -> str:
        return "".join([self._template, *strings_in(self._conversation)])


def strings_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from strings_in(key)
            yield from strings_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from strings_in(each)


def escaped(character: str) -> str:
    return json.dumps(character)[1:-1]


def ids_of_disguised(text: str, encoded: Encoded, coder: Coder, restore: Callable[[str], str]) -> list[int]:
    """The ids of a text with stand-ins, which was encoded with its control tokens found."""
    ids: list[int] = []
    piece: list[int] = []
    start = 0
    for id, (begin, end) in zip(*encoded, strict=True):
        control = coder.controls.get(id)
        # An unknown character too has the id of a control token, but not its text. Blanks around may be taken in.
        if control is None or text[begin:end].strip() != control.strip():
            piece.append(id)
            continue
        ids += [*plain_ids(text, slice(start, begin), piece, coder, restore), id]
        piece, start = [], end
    return ids + plain_ids(text, slice(start, None), piece, coder, restore)


def plain_ids(text: str, place: slice, ids: list[int], coder: Coder, restore: Callable[[str], str]) -> list[int]:
    """The ids of a piece without control tokens: those at hand, unless stand-ins are in it."""
    restored = restore(text[place])
    if restored == text[place]:
        return ids
    return coder.encode(restored, prefix=place.start == 0 or coder.prefix_each)[0]

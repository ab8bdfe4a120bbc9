"""Chat templates: the Jinja program of a checkpoint that writes a conversation as the model was trained on it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .characters import sound
from .errors import TextError, one_line


@dataclass(frozen=True)
class ChatTemplate:
    """A template and the texts of the special tokens it may name (`bos_token`, `eos_token`, ...).

    The template is read at the first `render`, so that a checkpoint with a faulty one can still be opened.
    """

    source: str
    special_tokens: Mapping[str, str] = field(default_factory=dict)

    def render(
        self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool = True, **extra: object
    ) -> str:
        """The conversation as text, up to where the assistant is to answer if `add_generation_prompt`.

        A message is a mapping with "role" and "content". `extra` are further names for the template, as `tools` or
        `enable_thinking`. Raises TextError for messages of another form, and for whatever goes wrong in the template:
        what it raises itself (`raise_exception`), a fault in it, an attempt to leave its sandbox, or no end in sight.
        """
        from . import sandbox  # Jinja takes longer to import than all of this room

        check_messages(messages)
        given = {"messages": messages, "add_generation_prompt": add_generation_prompt}
        names = {**self.special_tokens, "tools": None, "documents": None, **extra, **given}
        try:
            return sound(sandbox.written(self._program, names))
        except Exception as error:
            raise TextError(f"the chat template failed: {sandbox.described(error)}") from error

    @cached_property
    def _program(self) -> Any:
        from .sandbox import compiled

        return compiled(self.source)

    def __getstate__(self) -> dict[str, object]:
        return {"source": self.source, "special_tokens": self.special_tokens}  # a program cannot be pickled


def check_messages(messages: object) -> None:
    """Raise TextError unless these are messages as chat templates expect them."""
    if not isinstance(messages, list | tuple):
        raise TextError(f"messages: expected a list of messages, got {type(messages).__name__}")
    for n, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            example = '{"role": "user", "content": "Hello"}'
            raise TextError(f"message {n}: expected a mapping such as {example}, got {one_line(message)}")

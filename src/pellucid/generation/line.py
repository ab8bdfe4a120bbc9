"""One sequence's tokens turned into text as they come."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from .stop import StopMatcher


@runtime_checkable
class Decoder(Protocol):
    """Bytes of tokens to text, piece by piece; half characters wait for their rest."""

    def push(self, id: int, /) -> str: ...
    def finish(self) -> str: ...


@runtime_checkable
class Tokenizer(Protocol):
    """What generation asks of a tokenizer."""

    @property
    def bos_id(self) -> int | None: ...
    @property
    def eos_ids(self) -> Sequence[int]: ...
    def encode(self, text: str, /) -> list[int]: ...
    def decoder(self, *, continued: bool = False) -> Decoder: ...
    def ids_without_text(self, n_logits: int, /) -> list[int]: ...


class Line:
    """The text of one sequence, up to its stop string."""

    def __init__(self, decoder: Decoder | None, stops: Sequence[str]):
        self._decoder, self._matcher = decoder, StopMatcher(stops)

    @property
    def stopped(self) -> bool:
        """Whether a stop string has been found."""
        return self._matcher.stopped

    def push(self, id: int) -> str:
        """Take a token; give back the text that is certain by now."""
        return "" if self._decoder is None else self._matcher.push(self._decoder.push(id))

    def finish(self) -> str:
        """Give back what was held: half characters as U+FFFD, and the beginning of a stop string that never came."""
        rest = "" if self._decoder is None else self._matcher.push(self._decoder.finish())
        return rest + self._matcher.finish()

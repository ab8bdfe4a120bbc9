"""Stop strings, found in text that arrives in pieces."""

from collections.abc import Sequence


class StopMatcher:
    """Lets text through up to the first stop string, however the text is cut into pieces.

    Held back is only what may still become a stop string: the longest end of the text that begins one. The stop string
    that is complete first counts; of several that end at the same character, the longest. Memory and work per piece
    are bounded by the piece and the longest stop string.
    """

    def __init__(self, stops: Sequence[str]):
        self.stops = tuple(stops)
        self.stopped = False
        self._held = ""

    def push(self, text: str) -> str:
        """Take the next piece of text; give back what is now certain to belong to the result."""
        if self.stopped:
            return ""
        self._held += text
        matches = [(at + len(stop), at) for stop in self.stops if (at := self._held.find(stop)) >= 0]
        if matches:
            self.stopped = True
            return self._release(min(matches)[1])
        return self._release(len(self._held) - max(map(self._begun, self.stops), default=0))

    def finish(self) -> str:
        """The text ended: give back what was held, unless a stop string was found."""
        return "" if self.stopped else self._release(len(self._held))

    def _begun(self, stop: str) -> int:
        """How many characters at the end of the held text begin this stop string."""
        longest = min(len(stop) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(stop[:n])), 0)

    def _release(self, end: int) -> str:
        text, self._held = self._held[:end], self._held[end:]
        return text

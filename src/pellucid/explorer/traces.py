"""The runs that a server keeps, the last used ones up to a number of bytes."""

import hashlib
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..inside.trace import Trace
from .refusals import unknown


@dataclass(frozen=True, eq=False)
class Kept:
    """A run and what pages are told of it."""

    id: str
    model: str
    run: Trace
    info: dict[str, Any]


class Traces:
    """Runs by their ids. Together they hold at most `most` bytes: the one that was not used for longest goes first."""

    def __init__(self, most: int):
        self.most = most
        self._kept: dict[str, Kept] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """What all of them hold; what two of them share is counted twice."""
        with self._lock:
            return sum(kept.run.nbytes for kept in self._kept.values())

    def find(self, id: str) -> Kept | None:
        """The run with this id, if it is kept."""
        with self._lock:
            found = self._kept.pop(id, None)
            if found is not None:
                self._kept[id] = found  # the last used comes last
            return found

    def get(self, id: str) -> Kept:
        """The run with this id. Raises RefusedError for none."""
        found = self.find(id)
        if found is None:
            raise unknown("trace", id, "it was let go to make room, or never made; run the text again")
        return found

    def put(self, kept: Kept) -> Kept:
        """Keep a run, and let older ones go to make room for it."""
        with self._lock:
            self._kept.pop(kept.id, None)
            self._kept[kept.id] = kept
            total = sum(each.run.nbytes for each in self._kept.values())
            for old in [*self._kept][:-1]:
                if total <= self.most:
                    break
                total -= self._kept.pop(old).run.nbytes
        return kept

    def let_go(self, model: str) -> None:
        """Let all runs of a model go."""
        with self._lock:
            self._kept = {id: kept for id, kept in self._kept.items() if kept.model != model}


def id_of(model: str, ids: Sequence[int], source: Sequence[int] | None, edits: Sequence[dict[str, Any]]) -> str:
    """The id of a run: the same for the same model, tokens and edits, also after a server was started again."""
    said = json.dumps([model, list(ids), None if source is None else list(source), list(edits)], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:20]

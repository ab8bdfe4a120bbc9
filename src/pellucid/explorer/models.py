"""The models of a server: those it was given, and those it may load, a few at a time."""

import hashlib
import logging
import re
import threading
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..front import Model
from ..inside.shown.summary import model_info
from ..views.table import plain
from ..weights.known import KNOWN
from .refusals import LOG, RefusedError, refusal, unknown
from .worker import Job


@dataclass(eq=False)
class Held:
    """A model that is here: the name it has in addresses, what pages are told of it, and its report card once made."""

    id: str
    model: Model
    info: dict[str, Any]
    card: dict[str, Any] | None = field(default=None, repr=False)


class Models:
    """The models that are here, and the names of those that may be loaded.

    A page may ask for the models of `names` and for known ones, and for no other: it could else have any file of the
    machine opened. At most `most` are held; the one that was not used for longest goes first, but none that was given.
    """

    def __init__(
        self,
        given: Sequence[Model],
        names: Sequence[str],
        load: Callable[[str], Model],
        most: int,
        let_go: Callable[[str], object],
    ):
        self._load, self._most, self._let_go = load, most, let_go
        self._held: dict[str, Held] = {}  # the last used last
        self._came: list[Held] = []
        self._lock = threading.Lock()
        self.names = tuple(dict.fromkeys([*names, *KNOWN]))
        self.loading: str | None = None
        self.failed: str | None = None
        for model in given:
            self._put(model)
        self._given = frozenset(self._held)

    def all(self) -> list[Held]:
        """The models that are here, those given first, in the order in which they came."""
        with self._lock:
            return sorted(self._came, key=lambda held: held.id not in self._given)

    def get(self, id: str) -> Held:
        """The model with this id. Raises RefusedError for none."""
        with self._lock:
            found = self._held.get(id)
            if found is None:
                here = ", ".join(self._held) or "none yet"
                raise unknown("model", id, f"those that are loaded are {here}")
            self._held[id] = self._held.pop(id)  # the last used comes last
            return found

    def check(self, name: str) -> None:
        """Raise RefusedError for a name that may not be loaded."""
        with self._lock:
            if any(held.model.name == name for held in self._held.values()) or name in self.names:
                return
        raise RefusedError(
            403,
            "not_allowed",
            f"the model {name[:60]!r} is neither a known name nor one that this server was started with; "
            f"pellucid explore {name[:60]} starts one with it",
        )

    def load(self, name: str, job: Job | None = None) -> Held:
        """The model of that name, loaded where it is not here yet. Raises RefusedError for one that may not be."""
        self.check(name)
        with self._lock:
            here = next((held for held in self._held.values() if held.model.name == name), None)
        if here is not None:
            return self.get(here.id)
        self.loading = name
        try:
            if job is not None:
                job.tell("progress", {"stage": "load", "done": 0, "total": 1})
            held = self._put(self._load(name))
        except OSError as error:
            raise RefusedError(400, "invalid", f"{name} could not be read: {error}") from error
        finally:
            self.loading = None
        self.failed = None
        self._make_room()
        return held

    def load_first(self, name: str) -> None:
        """Load what a server was started with; what fails is kept, to be told to pages, and stands in the log."""
        try:
            self.load(name)
        except Exception as error:
            self.failed = refusal(error).to_json()["message"]
            if isinstance(error, ValueError | RefusedError):  # others are in the log already
                logging.getLogger(LOG).error(self.failed)

    def _put(self, model: Model) -> Held:
        id = id_of(model.name, self._held)
        held = Held(id, model, plain(model_info(model.transformer, model.name, id)))
        with self._lock:
            self._held[id] = held
            self._came.append(held)
        return held

    def _make_room(self) -> None:
        """Let go what is too much, the last used last; what was given stays, and one beside it has room always."""
        with self._lock:
            loaded = [id for id in self._held if id not in self._given]
            room = max(1, self._most - len(self._given))
            gone = loaded[: max(0, len(loaded) - room)]
            for id in gone:
                self._came.remove(self._held.pop(id))
        for id in gone:
            self._let_go(id)


def id_of(name: str, taken: Container[str] = ()) -> str:
    """A model's name as addresses can hold it; of a path its last part, and a few digits that tell it from others."""
    plain_name = re.sub(r"[^A-Za-z0-9._-]+", "-", name.rstrip("/").rpartition("/")[2]).strip("-.") or "model"
    own = plain_name if plain_name == name else f"{plain_name}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
    found, number = own, 1
    while found in taken:
        number += 1
        found = f"{own}-{number}"
    return found

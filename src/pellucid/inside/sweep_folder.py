"""Finished values of a sweep in a folder, so that an interrupted one goes on."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .edits import Edit
from .put import put
from .run import Run
from .sweep_jobs import Base

FILE = "sweep.json"


@dataclass(eq=False)
class Finished:
    """The values of a sweep so far, NaN where there is none yet, and the metric of the run that is edited."""

    path: Path | None
    question: str
    base: float
    values: list[float]
    known: list[bool]

    @classmethod
    def of(cls, folder: str | Path | None, base: Base, question: Sequence[object], size: int) -> "Finished":
        """What a folder holds of this question; nothing without a folder. Raises ValueError for another question's."""
        path = None if folder is None else Path(folder) / FILE
        if path is not None and path.parent.exists() and not path.parent.is_dir():
            raise ValueError(f"a sweep is kept in a folder, and {folder} is none: name another")
        asked = fingerprint(base, question) if path is not None else ""
        found = cls(path, asked, base.value(), [math.nan] * size, [False] * size)
        if path is not None and path.exists():
            found._load(path)
        return found

    @property
    def missing(self) -> list[int]:
        """The numbers of the values that are not there yet."""
        return [number for number, known in enumerate(self.known) if not known]

    def take(self, numbers: Sequence[int], values: Sequence[float]) -> None:
        """Take values in."""
        for number, value in zip(numbers, values, strict=True):
            self.values[number], self.known[number] = value, True

    def save(self) -> None:
        """Write all values aside, then move them into place: whatever interrupts, a whole file stands there."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        done = {str(at): value for at, value in enumerate(self.values) if self.known[at]}
        put(self.path, json.dumps({"question": self.question, "base": self.base, "values": done}).encode())

    def _load(self, path: Path) -> None:
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
            asked, base, done = held["question"], float(held["base"]), dict(held["values"])
            done = {int(at): float(value) for at, value in done.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is no file of a sweep: name another folder, or remove the file") from error
        if asked != self.question or not _alike(base, self.base):
            raise ValueError(f"{path} holds another sweep (other texts, sites, metric or weights): name another folder")
        if not all(0 <= at < len(self.values) for at in done):
            raise ValueError(f"{path} is no file of a sweep: name another folder, or remove the file")
        for at, value in done.items():
            self.values[at], self.known[at] = value, True


def _alike(held: float, now: float) -> bool:
    """Whether a metric is the same but for another machine's rounding; that tells apart what a name does not say."""
    return math.isclose(held, now, rel_tol=1e-3, abs_tol=1e-4) or (math.isnan(held) and math.isnan(now))


def fingerprint(base: Base, question: Sequence[object]) -> str:
    """What a sweep is about: the weights, the run that is edited, the metric, and what is asked of it."""
    metric = base.metric
    told: list[object] = [repr(base.run.transformer.config), *about(base.run)]
    told += [metric.name, metric.positions, metric.tokens, *question]
    return hashlib.sha256("\n".join(map(str, told)).encode()).hexdigest()


def about(run: Run) -> list[object]:
    """What makes a run: ids, edits and weights, and the same of its encoder's."""
    told: list[object] = [run.ids.tolist(), [described(edit) for edit in run.edits]]
    told += [(name, sample.double().tolist()) for name, sample in sorted(run.prints.items())]
    return told if run.source is None else told + about(run.source)


def described(edit: Edit) -> object:
    """An edit as data; of a free function its name."""
    return edit.to_json() if edit.function is None else (edit.site, repr(vars(edit)))

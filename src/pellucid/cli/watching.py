"""What a run's watches measure, as lines on the way."""

from typing import TYPE_CHECKING

from ..training.watch_names import CHANCE, LOSS
from ..views.strips import strip

if TYPE_CHECKING:
    from ..training.recording import Report

WIDTH = 24


class Lines:
    """Each watch as one line: its greatest measure over the steps, and all of its measures side by side now."""

    def __init__(self) -> None:
        self._history: dict[str, list[dict[str, float]]] = {}

    def of(self, report: "Report") -> list[str]:
        """The lines of a report, none where nothing was watched."""
        found = []
        for name, measures in (report.watched or {}).items():
            history = self._history.setdefault(name, [])
            history.append(dict(measures))
            found += [self._line(name, history)] if measures else []
        return found

    def _line(self, name: str, history: list[dict[str, float]]) -> str:
        now = history[-1]
        places = [measure for measure in now if measure not in (LOSS, CHANCE)]
        shown = [LOSS] if LOSS in now else []
        # Not a number is less than any.
        shown += [max(places, key=lambda place: (now[place] == now[place], now[place]))] if places else []
        parts = [f"{each} {now[each]:.4g} {self._over_steps(history, each)}" for each in shown]
        return f"  {name:<11} {'   '.join(parts)}   by place {strip((now[each] for each in places), WIDTH)}"

    def _over_steps(self, history: list[dict[str, float]], measure: str) -> str:
        return strip([each[measure] for each in history if measure in each][-WIDTH:], WIDTH)

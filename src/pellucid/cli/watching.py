"""From the names of watches to functions, and what they measure as lines on the way."""

from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING

from ..views.strips import strip

if TYPE_CHECKING:
    from ..training.recording import Report
    from ..training.run import Run, Watch

WATCHES = {
    "induction": "each head's induction score, and the loss on the second copy of random tokens",
    "previous": "each head's previous-token score",
    "gradients": "the gradient's length by depth",
    "updates": "the length of a step's update over that of the weights, by depth",
    "stream": "the stream's size by depth",
    "rank": "how many directions the stream spreads over, by depth",
    "weight-rank": "the same of each matrix",
}
WATCH_NAMES = "induction, previous, gradients, updates, stream, rank, weight-rank"
ROWS = 8  # of the fixed text that the stream is watched on
WIDTH = 24


def watch_names(said: str) -> list[str]:
    """The names in "induction,gradients". Raises ValueError for one that there is not, with the nearest."""
    names = [name.strip() for name in said.split(",") if name.strip()]
    for name in names:
        if name not in WATCHES:
            near = get_close_matches(name, WATCHES, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(WATCHES)}"
            raise ValueError(f"there is no watch {name!r}: {hint}")
    return list(dict.fromkeys(names))


def watches_of(names: Sequence[str], run: "Run") -> "dict[str, Watch]":
    """The functions of these names for a run. Raises ValueError for what a model of its kind does not have,
    and for what needs all weights in one process."""
    from ..inside.head_watches import repeated_tokens
    from ..training import watches

    found: dict[str, Watch] = {}
    for name in names:
        match name:
            case "induction" | "previous":
                text = repeated_tokens(run.transformer.config, run.tokenizer)
                found[name] = text.induction if name == "induction" else text.previous
            case "stream" | "rank":
                batch = run.held_back[0]() if run.held_back else run.reader(0)
                found[name] = partial(watches.stream if name == "stream" else watches.rank, probe=batch.ids[:ROWS])
            case "updates":
                if run.world.size > 1:
                    raise ValueError("updates are watched where one process holds all weights: leave them out")
                if run.world.size > 1:
                    raise ValueError("watch updates needs whole weights before a step, and many processes hold parts")
                found[name] = watches.Updates(run.transformer, run.optimizer, partial(_due_next, run))
            case "weight-rank":
                found[name] = watches.weight_rank
            case _:
                found[name] = watches.gradients
    return found


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
        places = [measure for measure in now if measure != "loss"]
        shown = ["loss"] if "loss" in now else []
        # Not a number is less than any.
        shown += [max(places, key=lambda place: (now[place] == now[place], now[place]))] if places else []
        parts = [f"{each} {now[each]:.4g} {self._over_steps(history, each)}" for each in shown]
        return f"  {name:<11} {'   '.join(parts)}   by place {strip((now[each] for each in places), WIDTH)}"

    def _over_steps(self, history: list[dict[str, float]], measure: str) -> str:
        return strip([each[measure] for each in history if measure in each][-WIDTH:], WIDTH)


def _due_next(run: "Run") -> bool:
    """Whether watches are taken after the step at hand."""
    step, every = run.steps + 1, run.settings.log.watch_every
    return step % every == 0 or step == run.settings.steps

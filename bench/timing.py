"""Timing contenders side by side: one round runs each once, in turn, so that a slow moment of the machine hits all."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Work = Callable[[], object]


@dataclass(frozen=True)
class Times:
    """Seconds of every round, by contender."""

    seconds: Mapping[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, against: str) -> float:
        """How often `name` would fit into the time of `against`: above 1 means that `name` is quicker."""
        pairs = zip(self.seconds[against], self.seconds[name], strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)


def side_by_side(works: Mapping[str, Work], rounds: int, warmups: int = 2) -> Times:
    """Run every work once a round, `rounds` times, after some rounds that do not count."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(warmups + rounds):
        for name, work in works.items():
            gc.collect()
            start = time.perf_counter()
            work()
            spent = time.perf_counter() - start
            if number >= warmups:
                seconds[name].append(spent)
    return Times(seconds)

"""Doing the runs of a sweep: what needs no run is answered, the rest is cut into passes that fit a memory budget."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from .plan import Change
from .sweep_folder import Finished
from .sweep_jobs import Base, Job
from .sweep_packed import Packed, key, logits_of


@dataclass(frozen=True)
class SweepOptions:
    """How a sweep is made.

    `row` and `source_row` are the rows of the two traces. `normalised=False` gives the metric itself instead of the
    effect. With `skip` an edit that changes nothing, or that cannot reach the metric's positions, is answered without a
    run. `memory` is what a pass may take in bytes beside the model; it moves results by rounding only. `progress` is
    told (finished, all) after every pass. In a `folder` finished values are kept, and an interrupted sweep goes on.
    """

    row: int = 0
    source_row: int = 0
    normalised: bool = True
    skip: bool = True
    memory: int = 192 * 2**20
    progress: Callable[[int, int], object] | None = None
    folder: str | Path | None = None

    def __post_init__(self) -> None:
        for name in ("row", "source_row", "memory"):
            if isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), int):
                raise ValueError(f"{name} must be a whole number, got {getattr(self, name)!r}")
        if self.memory < 1:
            raise ValueError(f"a sweep needs some memory, in bytes; got memory={self.memory}")
        if self.progress is not None and not callable(self.progress):
            raise ValueError(f"progress is a function of (finished, all), got {type(self.progress).__name__}")
        if self.folder is not None and not isinstance(self.folder, str | Path):
            raise ValueError(f"folder is a path, got {type(self.folder).__name__}")


@dataclass(frozen=True, eq=False)
class Cell:
    """One value of a sweep: the run with these changes.

    Where it is one change, `named` may say which columns it is made in, and `touched` where it makes a difference.
    """

    changes: tuple[Change, ...]
    named: tuple[int, ...] | None = None
    touched: tuple[int, ...] | None = None


def work(base: Base, cells: Sequence[Cell], options: SweepOptions, question: Sequence[object]) -> Float[Tensor, "N"]:
    """The metric of every cell, in float64. `question` says what a folder must have been about to be gone on with."""
    run = base.run
    run.check(run.prints)
    with torch.no_grad(), run.precision.restored():
        finished = Finished.of(options.folder, base, question, len(cells))
        jobs: dict[int, Job] = {}
        plain: list[int] = []
        for number in finished.missing:
            job = _job(base, cells[number], options.skip)
            if isinstance(job, Job):
                jobs[number] = job
            elif job:
                plain.append(number)
            else:
                finished.take([number], [finished.base])
        for numbers, values in _answers(base, cells, (jobs, plain), options.memory):
            finished.take(numbers, values)
            finished.save()
            if options.progress is not None:
                options.progress(len(cells) - len(finished.missing), len(cells))
        finished.save()
    return torch.tensor(finished.values, dtype=torch.float64)


def _job(base: Base, cell: Cell, skip: bool) -> Job | bool:
    """A cell as a job; True where it must be run by itself, False where it changes nothing that the metric reads."""
    quick = base.is_quick(cell.changes)
    if skip and cell.touched is None and quick:
        touched = [base.touched(change) for change in cell.changes]
        if not any(touched):
            return False
        cell = Cell(cell.changes, cell.named, tuple(touched[0]) if len(touched) == 1 else None)
    if skip and cell.touched == ():
        return False
    if not quick:
        return True
    known = cell.touched if skip else cell.named
    columns = [base.reached(change) for change in cell.changes] if known is None else [known]
    if skip and not any(base.reaches(*each) for each in zip(cell.changes, columns, strict=True)):
        return False
    last = base.here.place.positions.shape[1] - 1
    first = min((each[0] for each in columns if each), default=last) if base.run.transformer.config.causal else 0
    return Job(cell.changes, min(map(base.state_of, cell.changes)), first)


def _answers(
    base: Base, cells: Sequence[Cell], split: tuple[dict[int, Job], list[int]], memory: int
) -> Iterator[tuple[list[int], list[float]]]:
    """Values with their numbers, pass by pass."""
    jobs, plain = split
    for number in plain:
        yield [number], [base.plainly(cells[number].changes)]
    ordered = sorted(jobs, key=lambda number: key(jobs[number]))
    for numbers in _passes(base, [(number, jobs[number]) for number in ordered], memory):
        chosen = [jobs[number] for number in numbers]
        finals = Packed(base, chosen).final_states()
        yield numbers, _read(base, chosen, finals, memory)


def _passes(base: Base, jobs: Sequence[tuple[int, Job]], memory: int) -> Iterator[list[int]]:
    """Jobs in their order, as many together as the memory holds; at least one."""
    config = base.run.transformer.config
    size, length = base.run.states[0].element_size(), base.here.place.positions.shape[1]
    heads = (config.n_heads + 2 * config.n_kv_heads) * config.d_head
    token = size * (4 * config.d_model + 2 * heads + (4 if config.gated else 2) * config.d_ff)
    row = size * 2 * length * config.n_kv_heads * config.d_head
    taken, used = [], 0
    for number, job in jobs:
        needs = row + token * (length - job.column)
        if taken and used + needs > memory:
            yield taken
            taken, used = [], 0
        taken.append(number)
        used += needs
    if taken:
        yield taken


def _read(base: Base, jobs: Sequence[Job], finals: Float[Tensor, "J P D"], memory: int) -> list[float]:
    """The metric of final states; logits of as many at once as the memory holds."""
    vocab, size = base.run.transformer.config.vocab_size, finals.element_size()
    rows = max(1, memory // (2 * size * vocab * max(1, len(base.at))))
    values: list[float] = []
    for first in range(0, len(jobs), rows):
        logits = logits_of(base, jobs[first : first + rows], finals[first : first + rows])
        values += base.metric.read(base.run, logits).double().tolist()
    return values

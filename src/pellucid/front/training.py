"""Training by settings, with what happens inside watched on the way: the rooms that do both meet here."""

import os
from collections.abc import Callable, Sequence
from functools import partial

from ..inside.head_watches import repeated_tokens
from ..training import watches
from ..training.recording import Report
from ..training.run import Run, Watch
from ..training.settings import RunSettings, read_run
from ..training.watch_names import watch_names
from .loading import load
from .model import Model

ROWS = 8  # of the fixed text that the stream is watched on


def train(
    run: str | os.PathLike[str] | RunSettings | None = None,
    *,
    watch: Sequence[str] = (),
    changes: Sequence[str] = (),
    resume: bool = False,
    report: Callable[[Report], None] | None = None,
) -> Model:
    """Train a model from a TOML file, a run's folder, or settings (None: the defaults), and open what came of it.

    `changes` are single settings as "data.length=128"; `watch` names what is measured every `log.watch_every` steps.
    `report` is told of every step. All of it goes to the run's folder; `resume` goes on with what that holds. Raises
    ValueError, before the first step, for settings that do not fit together, the data or the folder.
    """
    names = watch_names(",".join(watch))
    settings = run if isinstance(run, RunSettings) else read_run(run, changes)
    if isinstance(run, RunSettings) and changes:
        raise ValueError("changes are of a file or a folder: settings are changed with dataclasses.replace")
    training = Run(settings, resume)
    training.watches |= watches_of(names, training)
    for each in training:
        if report is not None:
            report(each)
    return load(training.export())


def watches_of(names: Sequence[str], run: Run) -> dict[str, Watch]:
    """The functions of these names for a run. Raises ValueError for what a model of its kind does not have,
    and for what needs all weights in one process."""
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
                    raise ValueError("watch updates needs whole weights before a step, and many processes hold parts")
                found[name] = watches.Updates(run.transformer, run.optimizer, partial(_due_next, run))
            case "weight-rank":
                found[name] = watches.weight_rank
            case _:
                found[name] = watches.gradients
    return found


def _due_next(run: Run) -> bool:
    """Whether watches are taken after the step at hand."""
    step, every = run.steps + 1, run.settings.log.watch_every
    return step % every == 0 or step == run.settings.steps

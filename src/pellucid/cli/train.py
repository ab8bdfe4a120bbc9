"""`pellucid train`: a run from its settings, with what it learns shown on the way."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..training.watch_names import WATCH_NAMES, watch_names
from .options import Json
from .progress import bars
from .talk import print_json
from .watching import Lines

if TYPE_CHECKING:
    from ..training.recording import Report
    from ..training.run import Run
    from ..training.settings import RunSettings
    from ..training.world import World

Settings = Annotated[
    str | None,
    typer.Argument(metavar="[RUN]", help="A TOML file, or the folder of a run; none: a small model of characters."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting, as data.length=128; may be repeated."),
]
Watched = Annotated[
    str, typer.Option("--watch", metavar="NAMES", help=f"Measure every log.watch_every steps: {WATCH_NAMES}.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run that its folder holds.")]


def train(
    run: Settings = None, changes: Changes = None, watch: Watched = "", resume: Resume = False, as_json: Json = False
) -> None:
    """Train a model.

    Everything goes to the run's folder: settings, metrics, samples, checkpoints, the curve, and at the end the model.
    Ctrl-C ends a run after the step at hand, and --resume goes on with it as if it had never stopped.
    Many processes train one model as `torchrun --nproc-per-node 2 -m pellucid train`.
    """
    # Threads that wait for one another give the processor away: on a busy machine, holding it costs them most.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from ..training.settings import read_run

    with _world() as world, redirect_stdout(sys.stdout if world.leads else StringIO()):
        _train(read_run(run, changes or ()), resume, watch_names(watch), as_json, world)


def _train(settings: "RunSettings", resume: bool, names: list[str], as_json: bool, world: "World") -> None:
    from ..front.training import watches_of
    from ..training.run import Run

    lines = Lines()
    with bars(world.leads) as task:
        training = Run(settings, resume, task=task, world=world)
        training.watches |= watches_of(names, training)
        advance = task("training", settings.steps)
        advance(training.steps)
        last: dict[str, Any] = {"steps": training.steps}
        with _stopping(training):
            for report in training:
                advance(1)
                last |= _kept(report)
                if not as_json:
                    _show(report, lines)
    done = training.steps == settings.steps
    path = training.export() if done else None
    best = training.best if training.best < float("inf") else None
    found = {"folder": str(training.folder), **last, "best": best, "model": None if path is None else str(path)}
    if as_json:
        print_json(found)
    else:
        print(f"The model is in {path}" if done else f"Stopped after {training.steps} steps: --resume goes on")


def _kept(report: "Report") -> dict[str, Any]:
    """What is said of a run's last step, validation and text."""
    values = {"steps": report.record.step + 1, "loss": report.record.loss}
    values |= {} if report.validation is None else {"validation": report.validation}
    return values | ({} if report.text is None else {"text": report.text})


def _show(report: "Report", lines: Lines) -> None:
    record, step = report.record, report.record.step + 1
    if record.skipped:
        print(f"step {step:>7,}   skipped: the loss or its gradient is not finite")
    if report.validation is not None:
        loss = "none" if record.loss is None else f"{record.loss:.4f}"
        speed = record.tokens / record.seconds
        print(f"step {step:>7,}   loss {loss}   validation {report.validation:.4f}   {speed:,.0f} tokens/s", flush=True)
    watched = lines.of(report)
    if watched:
        print(f"step {step:>7,}", *watched, sep="\n", flush=True)
    if report.text is not None:
        print(f"\n{report.text.strip()}\n", flush=True)


@contextmanager
def _world() -> "Iterator[World]":
    """The processes that train together: this one, unless torchrun began many."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from ..training.distributed import joined

        with joined() as world:
            yield world
    else:
        from ..training.world import World

        yield World()


@contextmanager
def _stopping(run: "Run") -> Iterator[None]:
    """Let the first interrupt end the run after its step, and a second one at once."""

    def stop(*_: object) -> None:
        run.stop()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

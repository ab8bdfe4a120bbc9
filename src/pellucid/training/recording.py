"""What a run writes down of its steps: JSON lines, TensorBoard's files if asked, and at the end a picture."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .curve import can_draw, draw
from .journal import Journal
from .loop import Record
from .settings import Log
from .watch_curve import draw_watches

METRICS, SAMPLES, WATCHES, CURVE, WATCHED, BOARD = (
    "metrics.jsonl", "samples.jsonl", "watches.jsonl", "curve.png", "watches.png", "tensorboard",
)  # fmt: skip


@dataclass(frozen=True)
class Report:
    """A step's record, and what was done after it: the loss on the validation data, a text, the watches' measures."""

    record: Record
    validation: float | None = None
    text: str | None = None
    watched: Mapping[str, Mapping[str, float]] | None = None


class Recorder:
    """The files of a run's folder that grow. What an earlier process wrote from step `since` on is taken out."""

    def __init__(self, folder: Path, since: int, log: Log):
        self.folder, self.log = folder, log
        self._metrics, self._samples, self._watches = (
            Journal(folder / name, since) for name in (METRICS, SAMPLES, WATCHES)
        )
        self._board = _board(folder / BOARD, since) if log.tensorboard else None

    def write(self, report: Report) -> None:
        """Write a report down."""
        step = report.record.step
        validation = {} if report.validation is None else {"validation": report.validation}
        self._metrics.write({**asdict(report.record), **validation})
        if report.text is not None:
            self._samples.write({"step": step, "text": report.text})
        for name, measures in (report.watched or {}).items():
            self._watches.write({"step": step, "watch": name, **measures})
        if self._board is not None:
            for name, value in _scalars(report).items():
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Close the files, and draw the curve and the watches if that is wanted and can be done."""
        for opened in (self._metrics, self._samples, self._watches, self._board):
            if opened is not None:
                opened.close()
        if self.log.curve and can_draw():
            draw(self.folder / METRICS, self.folder / CURVE)
            draw_watches(self.folder / WATCHES, self.folder / WATCHED)


def has_board() -> bool:
    """Whether TensorBoard is installed."""
    return find_spec("tensorboard") is not None


def _board(folder: Path, since: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter  # pyright: ignore[reportPrivateImportUsage]

    return SummaryWriter(folder, purge_step=since)


def _scalars(report: Report) -> dict[str, float]:
    values = {**asdict(report.record), "validation": report.validation}
    for name, measures in (report.watched or {}).items():
        values |= {f"{name}/{measure}": value for measure, value in measures.items()}
    return {name: value for name, value in values.items() if value is not None and name != "step"}

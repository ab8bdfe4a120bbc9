"""The loop: forward, backward, clip, step. It would train anything that an objective can make a loss of."""

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..model.checks import at_least, one_of, whole
from ..model.transformer import Transformer
from .batch import Batch, Objective
from .optimizers import Together
from .schedules import Schedule
from .sublayers import first_fault, recomputing


class TrainingError(ValueError):
    """Training cannot go on: the message says since when, where the fault stands, and what to try."""


@dataclass(frozen=True)
class Settings:
    """How a step is made.

    `rows`: of a batch are run at a time (0: all), their gradients summed: the step is that of the whole batch. `clip`:
    the greatest length of the gradient (0: any). `precision` "bfloat16" runs matrix products in it where torch's
    autocast does; weights, gradients and the optimiser stay as they are. `recompute` keeps less for the backward pass.
    `most_skipped`: steps in a row whose loss or gradient is not finite are skipped, up to so many. `first_step` numbers
    the first batch.
    """

    rows: int = 0
    clip: float = 1.0
    precision: str = "float32"
    recompute: bool = False
    most_skipped: int = 5
    first_step: int = 0

    def __post_init__(self) -> None:
        at_least("loop.rows", self.rows, 0)
        at_least("loop.clip", self.clip, 0.0)
        one_of("loop.precision", self.precision, ("float32", "bfloat16"))
        whole("loop.most_skipped", self.most_skipped)
        at_least("loop.first_step", self.first_step, 0)


@dataclass(frozen=True)
class Record:
    """What a step was: the mean loss of its targets in nats (None without targets, or if it is not finite), the
    learning rate, the gradient's length before it was clipped, how many targets it had, its seconds, and how many steps
    in a row, this one included, were skipped because a number was not finite (0: this one was taken)."""

    step: int
    loss: float | None
    lr: float
    grad_norm: float | None
    tokens: int
    seconds: float
    skipped: int = 0


def train(
    transformer: Transformer,
    batches: Iterable[Batch],
    objective: Objective,
    optimizer: Optimizer | Together,
    schedule: Schedule,
    settings: Settings = Settings(),
) -> Iterator[Record]:
    """Take one step for each batch, and yield its record; whoever asks for the next one lets it be taken.

    Between two records the weights are those after the step, and each parameter's `grad` the clipped gradient that made
    it. A batch without targets changes nothing. Raises TrainingError after `most_skipped` steps in a row were skipped.
    """
    skipped = 0
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for step, batch in enumerate(batches, settings.first_step):
        start, lr = perf_counter(), schedule(step)
        transformer.train()
        optimizer.zero_grad()
        loss, targets = _backward(transformer, objective, batch, settings)
        norm = _clip(weights, targets, settings.clip)
        sound = math.isfinite(loss) and math.isfinite(norm)
        skipped = 0 if sound else skipped + 1
        if sound and targets:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
        mean = loss / targets if sound and targets else None
        seconds = perf_counter() - start
        yield Record(step, mean, lr, norm if sound and targets else None, targets, seconds, skipped)
        if skipped >= settings.most_skipped:
            raise TrainingError(_stopped(step, skipped, first_fault(transformer, objective, batch)))


def _backward(transformer: Transformer, objective: Objective, batch: Batch, settings: Settings) -> tuple[float, int]:
    """Gradients of the sum of the batch's losses, some rows at a time; that sum, and how many targets it has."""
    rows, device = len(batch.ids), transformer.W_U.device
    size = settings.rows or rows
    total, targets = torch.zeros((), device=device), 0
    with recomputing(transformer, settings.recompute):
        for first in range(0, rows, size):
            with _precision(settings, device):
                losses, count = objective(transformer, batch.rows(first, first + size).to(device))
            if count:
                losses.backward()
                total, targets = total + losses.detach(), targets + count
    return total.item(), targets


def _clip(weights: list[Tensor], targets: int, clip: float) -> float:
    """Turn gradients of the sum into those of the mean, no longer than `clip`; their length before that."""
    grads = [weight.grad for weight in weights if weight.grad is not None]
    if not grads or not targets:
        return 0.0
    norm = torch.nn.utils.get_total_norm(grads).item() / targets
    if math.isfinite(norm):
        scale = min(1.0, clip / norm) if clip and norm else 1.0
        torch._foreach_mul_(grads, scale / targets)  # pyright: ignore[reportPrivateImportUsage]
    return norm


def _precision(settings: Settings, device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bfloat16")


def _stopped(step: int, skipped: int, fault: str) -> str:
    return (
        f"stopped at step {step}: the loss or its gradient was not finite {skipped} times in a row; the first fault is "
        f"in {fault}. Try a smaller learning rate, a longer warm-up or clipping"
    )

"""Metrics: one number for each row of logits, with the positions that it reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .errors import MetricError
from .run import Run

Read = Callable[[Float[Tensor, "N P V"], list[int]], Float[Tensor, "N"]]  # logits, ids of the metric's tokens -> values


@dataclass(frozen=True, eq=False)
class Metric:
    """A number read off the logits at some of a row's positions.

    `positions` count a row's tokens from 0, or back from its end; no other logits are computed. `function` is given the
    logits there, [rows, positions, vocabulary], and the ids of `tokens` (texts or ids), and gives one number a row. It
    must be differentiable where gradients are asked for.
    """

    name: str
    function: Read
    positions: tuple[int, ...] = (-1,)
    tokens: tuple[str | int, ...] = ()

    def columns(self, run: Run, row: int = 0) -> list[int]:
        """The columns that are read in one row of a run."""
        return [run.column(row, position) for position in self.positions]

    def read(self, run: Run, logits: Float[Tensor, "N P V"]) -> Float[Tensor, "N"]:
        """The metric of logits at its positions; `run` gives the tokens' ids. Raises MetricError for a wrong shape."""
        found = self.function(logits, [run.id_of(token) for token in self.tokens])
        if not isinstance(found, Tensor) or found.shape != logits.shape[:1]:
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise MetricError(
                f"the metric {self.name!r} must give one number a row, shape {logits.shape[0]}, got {got}"
            )
        return found

    def of(self, run: Run) -> Float[Tensor, "B"]:
        """The metric of every row of a run, by itself; with its graph if the run keeps one."""
        with torch.set_grad_enabled(run.attached):
            rows = [run.logits_at(row, self.columns(run, row)) for row in range(run.ids.shape[0])]
            return self.read(run, torch.stack(rows))


def check_metric(metric: Metric, *runs: Run) -> None:
    """Refuse what is no metric, or no trace, before anything is run. Raises MetricError."""
    if not isinstance(metric, Metric):
        raise MetricError(f"a metric is made by logit, probability, loss, ..., or is a Metric, got {metric!r:.60}")
    for run in runs:
        if not isinstance(run, Run):
            raise MetricError(f"a metric is read off a trace (model.trace(text)), got {type(run).__name__}")


def logit(token: str | int, minus: str | int | None = None, position: int = -1) -> Metric:
    """A token's logit, or how far it lies above another's."""
    if minus is None:
        return Metric(f"logit of {token!r}", _logit, (position,), (token,))
    return Metric(f"logit of {token!r} minus {minus!r}", _difference, (position,), (token, minus))


def log_probability(token: str | int, position: int = -1) -> Metric:
    """The natural logarithm of a token's probability."""
    return Metric(f"log probability of {token!r}", _log_probability, (position,), (token,))


def probability(token: str | int, position: int = -1) -> Metric:
    """A token's probability."""
    return Metric(f"probability of {token!r}", _probability, (position,), (token,))


def loss(tokens: Sequence[str | int], positions: Sequence[int]) -> Metric:
    """The mean cross-entropy, in nats, of one token that should come after each of some positions."""
    if not tokens or len(tokens) != len(positions):
        raise MetricError(f"a loss needs one token for each position, got {len(tokens)} for {len(positions)}")
    return Metric("loss", _loss, tuple(positions), tuple(tokens))


def divergence(reference: Run, position: int = -1) -> Metric:
    """KL(reference || run) in nats, of what comes after one position: of the reference's first row, and of the run."""
    with torch.no_grad():
        chances = _log_softmax(reference.logits_at(0, [reference.column(0, position)])[0])

    def function(logits: Float[Tensor, "N P V"], _ids: list[int]) -> Float[Tensor, "N"]:
        return (chances.exp() * (chances - _log_softmax(logits[:, 0]))).sum(-1)

    return Metric("divergence from the reference", function, (position,))


def _log_softmax(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def _logit(logits: Tensor, ids: list[int]) -> Tensor:
    return logits[:, 0, ids[0]]


def _difference(logits: Tensor, ids: list[int]) -> Tensor:
    return logits[:, 0, ids[0]] - logits[:, 0, ids[1]]


def _log_probability(logits: Tensor, ids: list[int]) -> Tensor:
    return _log_softmax(logits[:, 0])[:, ids[0]]


def _probability(logits: Tensor, ids: list[int]) -> Tensor:
    return _log_probability(logits, ids).exp()


def _loss(logits: Tensor, ids: list[int]) -> Tensor:
    return -torch.stack([_log_softmax(logits[:, at])[:, token] for at, token in enumerate(ids)]).mean(0)

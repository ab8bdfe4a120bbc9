"""The stream as a path: how far each step goes and which way, and what becomes of what was written earlier.

Axes: N states of the stream, W writes into it, P the tokens of one row, D model width. All in float64.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..views.curves import paths
from ..views.figures import View
from ..views.table import Table
from .effects import Effects
from .reading import state_sites
from .run import Run


@dataclass(frozen=True, eq=False, repr=False)
class Path:
    """The states of every token of a row in the plane (or space) in which they differ most.

    `tokens` are their positions and labels, `points` coordinates along the principal axes, `explained` the share of the
    variance along each. An axis points the way in which its largest component is positive; `axes` are unit vectors.
    """

    states: tuple[str, ...]
    tokens: tuple[str, ...]
    points: Float[Tensor, "N P K"]
    axes: Float[Tensor, "K D"]
    explained: Float[Tensor, "K"]

    def table(self) -> Table:
        """Every state of every token, token by token."""
        names = tuple(f"axis {number}" for number in range(1, len(self.explained) + 1))
        rows = tuple(
            (token, state, *self.points[at, column].tolist())
            for column, token in enumerate(self.tokens)
            for at, state in enumerate(self.states)
        )
        shares = ", ".join(f"{share:.1%}" for share in self.explained.tolist())
        return Table("path of the stream", ("token", "state", *names), rows, f"Explained: {shares}.")

    def top(self, k: int = 10) -> Table:
        """The first `k` states."""
        return self.table().top(k)

    def plot(self) -> View:
        """The paths over the first two axes, one a token. Raises ValueError for a path along one axis."""
        if len(self.explained) < 2:
            raise ValueError("a picture of the path needs two axes: trajectory(trace, k=2)")
        drawn = {
            token: [(x, y) for x, y in self.points[:, column, :2].tolist()] for column, token in enumerate(self.tokens)
        }
        names = [f"axis {at + 1} ({share:.0%} of the variance)" for at, share in enumerate(self.explained.tolist()[:2])]
        return paths(drawn, "path of the stream, embedding (ring) to last state", (names[0], names[1]))

    def to_json(self) -> dict[str, object]:
        """The path as plain data."""
        return {
            "states": list(self.states),
            "tokens": list(self.tokens),
            "points": self.points.tolist(),
            "explained": self.explained.tolist(),
        }

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__


@torch.no_grad()
def trajectory(trace: Run, row: int = 0, k: int = 2, first: int = 0, last: int | None = None) -> Path:
    """The path of the row's tokens along the k principal axes of all their states (centred, not scaled).

    Tokens before `first` are left out: a model's first token often grows so large that the axes show nothing else; and
    those after `last`. Raises ValueError where no token is left, or where there are fewer states or dimensions than
    axes.
    """
    states = _states(trace, row, first, last)
    flat = states.flatten(0, 1)
    if not 1 <= k <= min(flat.shape):
        raise ValueError(f"k must lie in 1..{min(flat.shape)}, got {k}")
    centred = flat - flat.mean(0)
    _, sizes, axes = torch.linalg.svd(torch.linalg.qr(centred, mode="r").R, full_matrices=False)
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    axes = (axes * largest.sign())[:k]
    total = sizes.square().sum().clamp(min=torch.finfo(sizes.dtype).tiny)
    points = (centred @ axes.T).unflatten(0, states.shape[:2])
    return Path(tuple(_names(trace)), _labels(trace, row, first, last), points, axes, sizes[:k].square() / total)


@torch.no_grad()
def step_lengths(trace: Run, row: int = 0, relative: bool = False, first: int = 0, last: int | None = None) -> Effects:
    """|x_{n+1} - x_n|, how far each step takes each token; `relative` to |x_n|, where the step starts.

    Tokens before `first` and after `last` are left out.
    """
    states = _states(trace, row, first, last)
    lengths = states.diff(dim=0).norm(dim=-1)
    if relative:
        lengths = lengths / states[:-1].norm(dim=-1)
    title = "step lengths" + (", relative to the state before" if relative else "")
    tokens, names = _labels(trace, row, first, last), ("state reached", "position", "length")
    return Effects(title, tuple(_names(trace)[1:]), tokens, lengths, names=names)


@torch.no_grad()
def angles(trace: Run, row: int = 0, first: int = 0, last: int | None = None) -> Effects:
    """The angle in degrees between each step and the one before: 0 goes straight on, 90 turns aside, 180 goes back.

    Tokens before `first` and after `last` are left out.
    """
    steps = _states(trace, row, first, last).diff(dim=0)
    if len(steps) < 2:
        raise ValueError("an angle needs two steps, and this model has one")
    cosine = torch.nn.functional.cosine_similarity(steps[1:], steps[:-1], dim=-1)
    degrees = cosine.clamp(-1, 1).acos().rad2deg()
    names = ("state reached", "position", "degrees")
    tokens = _labels(trace, row, first, last)
    return Effects("angle to the step before", tuple(_names(trace)[2:]), tokens, degrees, names=names)


@torch.no_grad()
def write_norms(trace: Run, row: int = 0, relative: bool = True) -> Effects:
    """|update| of each sublayer at each token, relative to the |state| that is read: how much a block does to it."""
    transformer, columns, found, names = trace.transformer, trace.columns(row), [], []
    for state, step in zip(trace.states, transformer.steps, strict=False):
        size = state[row, columns].cpu().double().norm(dim=-1)
        for part in step.parts:
            norm = trace[f"{part.name}.update"][row, columns].cpu().double().norm(dim=-1)
            found.append(norm / size if relative else norm)
            names.append(part.name)
    title = "norm of what is written" + (", relative to the state" if relative else "")
    return _grid(title, names, trace, row, torch.stack(found), ("written by", "position", "norm"))


@torch.no_grad()
def write_cosines(trace: Run, row: int = 0) -> Effects:
    """The cosine of each write with each earlier one, the mean over the row's tokens; the embedding is the first write.

    Below zero the later one takes away of what the earlier one wrote. Later and equal columns are left out (NaN).
    """
    names, writes = _writes(trace, row)
    unit = torch.nn.functional.normalize(writes, dim=-1)
    cosines = torch.einsum("wpd,vpd->wv", unit, unit) / writes.shape[1]
    earlier = torch.ones_like(cosines, dtype=torch.bool).tril(-1)
    values = cosines.where(earlier, torch.nan)[1:, :-1]
    title = "cosine of writes with earlier ones, mean over tokens"
    return Effects(title, names[1:], names[:-1], values, names=("write", "earlier write", "cosine"))


@torch.no_grad()
def kept(trace: Run, row: int = 0) -> Effects:
    """How much of each write the final sum holds: 1 + (sum of later writes) . w / |w|^2, for each token.

    1: nothing later is along it; 0: cancelled; more than 1: written again. Before any norm that follows the stack.
    Raises ValueError in a post-norm model, whose stream is normed again and again and so is no sum of writes.
    """
    names, writes = _writes(trace, row)
    if any(step.after is not None for step in trace.transformer.steps):
        raise ValueError("in a post-norm model the last state is no sum of what was written: a norm follows each sum")
    later = writes.flip(0).cumsum(0).flip(0) - writes
    share = 1 + (later * writes).sum(-1) / writes.square().sum(-1)
    return _grid("share of each write in the last state", names, trace, row, share, ("write", "position", "share"))


def _writes(trace: Run, row: int) -> tuple[tuple[str, ...], Float[Tensor, "W P D"]]:
    """What enters the stream, in order: the first state, and every sublayer's update."""
    columns = trace.columns(row)
    parts = [part.name for step in trace.transformer.steps for part in step.parts]
    updates = [trace[f"{name}.update"][row, columns].cpu().double() for name in parts]
    first = trace.states[0][row, columns].cpu().double()
    return (f"{trace.transformer.prefix}embed", *parts), torch.stack([first, *updates])


def _states(trace: Run, row: int, first: int = 0, last: int | None = None) -> Float[Tensor, "N P D"]:
    """The states of the row's tokens from `first` to `last`. Raises ValueError where no token is left."""
    known = trace.columns(row)
    stop = len(known) if last is None else last + 1
    if not 0 <= first < stop <= len(known):
        to = "" if last is None else f" and last={last}"
        raise ValueError(f"row {row} has positions 0..{len(known) - 1}, got first={first}{to}")
    return torch.stack([state[row, known[first:stop]].cpu().double() for state in trace.states])


def _names(trace: Run) -> list[str]:
    return state_sites(trace.transformer)


def _grid(
    title: str, rows: list[str] | tuple[str, ...], trace: Run, row: int, values: Tensor, names: tuple[str, str, str]
) -> Effects:
    return Effects(title, tuple(rows), _labels(trace, row), values, names=names)


def _labels(trace: Run, row: int, first: int = 0, last: int | None = None) -> tuple[str, ...]:
    labels = tuple(f"{position} {token}" for position, token in enumerate(trace.tokens(row)))
    return labels[first : None if last is None else last + 1]

"""Superposition: more directions than dimensions. How a set of directions lies, and a toy model that learns such a set.

Axes: N directions or features, D dimensions.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..views.table import Table

_CHUNK = 1024  # directions whose cosines with all others are held at a time


@dataclass(frozen=True, eq=False, repr=False)
class Spread:
    """How n directions lie in d dimensions, by the cosines of all pairs of different ones.

    `shares` of the pairs fall between neighbouring `edges`; `expected` is what they would be for directions drawn at
    random (density proportional to (1 - c^2)^((d - 3) / 2), mean square 1 / d). `least` is the smallest mean square
    that n directions in d dimensions can have: (n - d) / (d (n - 1)) (Welch 1974), 0 where all fit at right angles.
    """

    n: int
    d: int
    edges: tuple[float, ...]
    shares: tuple[float, ...]
    expected: tuple[float, ...]
    mean_square: float
    largest: float

    @property
    def per_dimension(self) -> float:
        """Directions per dimension."""
        return self.n / self.d

    @property
    def random(self) -> float:
        """The mean squared cosine of random directions."""
        return 1 / self.d

    @property
    def least(self) -> float:
        """The least mean squared cosine that is possible."""
        return max(0.0, (self.n - self.d) / (self.d * (self.n - 1)))

    @property
    def effective(self) -> float:
        """The dimensions that the directions fill: n^2 / sum of all squared cosines, each with itself included."""
        return self.n / (1 + (self.n - 1) * self.mean_square)

    def table(self) -> Table:
        """The histogram of cosines beside that of random directions."""
        bins = zip(self.edges, self.edges[1:], self.shares, self.expected, strict=False)
        note = (
            f"{self.n:,} directions in {self.d:,} dimensions ({self.per_dimension:.2f} for each): mean squared cosine "
            f"{self.mean_square:.3e}, random {self.random:.3e}, least possible {self.least:.3e}; "
            f"largest cosine {self.largest:.3f}"
        )
        return Table("cosines of directions", ("from", "to", "share", "random"), tuple(bins), note)

    def top(self, k: int = 10) -> Table:
        """The k bins that hold most pairs."""
        table = self.table()
        rows = sorted(table.rows, key=_share, reverse=True)
        return Table(table.title, table.columns, tuple(rows), table.note).top(k)

    def to_json(self) -> dict[str, object]:
        """The statistics and the histogram as plain data."""
        numbers = ("n", "d", "mean_square", "random", "least", "largest", "per_dimension", "effective")
        return {**{name: getattr(self, name) for name in numbers}, "cosines": self.table().to_json()}

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__


@torch.no_grad()
def spread_of(directions: Float[Tensor, "N D"], bins: int = 20) -> Spread:
    """How directions lie, whatever their lengths; all-zero ones are left out. In float64, some rows at a time.

    Raises ValueError for fewer than two directions, fewer than two dimensions or no bins.
    """
    directions = directions.double()
    directions = directions[directions.norm(dim=1) > 0]
    n, d = directions.shape
    if n < 2 or d < 2 or bins < 1:
        raise ValueError(
            f"cosines need at least 2 directions (not zero) in 2 dimensions and 1 bin, got {n}, {d} and {bins}"
        )
    unit = torch.nn.functional.normalize(directions, dim=1)
    counts, squares, largest = torch.zeros(bins, dtype=torch.float64), 0.0, 0.0
    for cosines in _pairs(unit):
        cosines = cosines.clamp(-1, 1).cpu()
        counts += torch.histc(cosines, bins, -1.0, 1.0)
        squares += float(cosines.square().sum())
        largest = max(largest, float(cosines.abs().max()))
    edges = tuple(torch.linspace(-1, 1, bins + 1, dtype=torch.float64).tolist())
    pairs = n * (n - 1)
    shares = tuple((counts / pairs).tolist())
    return Spread(n, d, edges, shares, random_shares(d, bins), squares / pairs, largest)


def random_shares(d: int, bins: int, fine: int = 4000) -> tuple[float, ...]:
    """The share of random directions' cosines in each of some equal bins of -1..1: sin(theta)^(d - 2), integrated."""
    shares = []
    for at in range(bins):
        near, far = (math.acos(max(-1.0, min(1.0, -1 + 2 * (at + step) / bins))) for step in (1, 0))
        theta = torch.linspace(near, far, fine, dtype=torch.float64)
        shares.append(float(torch.trapezoid(theta.sin().clamp(min=0) ** (d - 2), theta)))
    return tuple(share / math.fsum(shares) for share in shares)


def _pairs(unit: Float[Tensor, "N D"]) -> Iterator[Float[Tensor, "pairs"]]:
    """The cosines of each direction with every other one, some directions at a time."""
    for first in range(0, len(unit), _CHUNK):
        cosines = unit[first : first + _CHUNK] @ unit.T
        at = torch.arange(len(cosines), device=unit.device)
        others = torch.ones_like(cosines, dtype=torch.bool)
        others[at, first + at] = False
        yield cosines[others]


def _share(row: tuple[object, ...]) -> float:
    share = row[2]
    assert isinstance(share, float)
    return share

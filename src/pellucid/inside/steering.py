"""Steering vectors: the mean difference of a stream state between texts of two kinds, to be added while a model runs.

Contrastive activation addition (Turner et al. 2023; Rimsky et al. 2024).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..views.table import Table
from .edits import Choice, Edit, add
from .errors import EditError
from .reading import state_sites
from .run import Run

_FIELDS = {"site", "positions", "rows", "vector"}


@dataclass(frozen=True, eq=False, repr=False)
class Steering:
    """A vector of one stream state. `rows` texts of each kind were read at `positions` (-1: the last token)."""

    site: str
    vector: Float[Tensor, "D"]
    rows: tuple[int, int]
    positions: tuple[int, ...]

    @property
    def norm(self) -> float:
        """The vector's Euclidean norm."""
        return float(self.vector.norm())

    def edit(self, factor: float = 1.0, **where: Choice) -> Edit:
        """The edit that adds the vector, times a factor, to its state; `where`: position=, absolute ones."""
        return add(self.site, factor * self.vector, **where)

    def table(self) -> Table:
        """What the vector is made of."""
        positions = ", ".join(map(str, self.positions))
        row = (self.site, self.norm, *self.rows, positions)
        return Table("steering vector", ("site", "norm", "texts towards", "texts away", "positions"), (row,))

    def to_json(self) -> dict[str, Any]:
        """The vector as plain data, in float64."""
        fields = {"site": self.site, "positions": list(self.positions), "rows": list(self.rows)}
        return {**fields, "vector": self.vector.double().tolist()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Steering":
        """The inverse of `to_json`. Raises EditError for anything else."""
        if set(data) != _FIELDS or not isinstance(data["site"], str):
            raise EditError(f"a steering vector has the fields {', '.join(sorted(_FIELDS))}, got {sorted(data)}")
        try:
            vector = torch.tensor(data["vector"], dtype=torch.float64)
            rows, positions = tuple(data["rows"]), tuple(data["positions"])
        except (TypeError, ValueError, RuntimeError) as error:
            raise EditError(f"a steering vector's numbers cannot be read: {error}") from error
        if vector.ndim != 1 or not bool(vector.isfinite().all()) or len(rows) != 2:
            raise EditError("a steering vector is one row of finite numbers, of texts of two kinds")
        return cls(data["site"], vector, rows, positions)

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__


def steering(towards: Run, away: Run, site: str, position: int | Sequence[int] = -1) -> Steering:
    """The mean of a stream state over the texts of one trace less that over the texts of another.

    `site` is a state ("12.stream"); `position` is one token of each row or several, counted from 0 or back from the
    row's end. Raises EditError for a site that is no state of the stream, or models of different widths.
    """
    states = state_sites(towards.transformer)
    if site not in states:
        raise EditError(f"a steering vector is of a state of the stream, {states[0]} to {states[-1]}, got {site!r}")
    positions = (position,) if isinstance(position, int) else tuple(position)
    if not positions:
        raise EditError("a steering vector needs at least one position, got none")
    means = [mean_state(trace, site, positions) for trace in (towards, away)]
    if means[0].shape != means[1].shape:
        raise EditError(f"the traces' states have widths {len(means[0])} and {len(means[1])}: trace one model")
    rows = (towards.ids.shape[0], away.ids.shape[0])
    return Steering(site, means[0] - means[1], rows, positions)


def mean_state(trace: Run, site: str, positions: Sequence[int]) -> Float[Tensor, "D"]:
    """The mean of a state over all rows of a trace and some of each row's tokens, in float64."""
    value = trace[site]
    columns = [[trace.column(row, at) for at in positions] for row in range(value.shape[0])]
    return torch.cat([value[row, at].double() for row, at in enumerate(columns)]).mean(0)

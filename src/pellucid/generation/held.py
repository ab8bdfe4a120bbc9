"""The cache of a batch from which sequences drop out."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..model.cache import Cache
from ..model.place import Place


class Held(Cache):
    """A cache that can forget rows, and the columns that are padding in all the others."""

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order."""
        assert self.place is not None, "there is nothing to forget before the first pass"
        first = 0
        if self.place.real is not None:
            self.place, first = _narrowed(self.place, self.place.real, rows)
        for store in (self._keys, self._values):
            for layer, held in store.items():
                store[layer] = held[list(rows), first:]


def _narrowed(place: Place, real: Tensor, rows: Sequence[int]) -> tuple[Place, int]:
    """The place of some of the rows without their common padding, and how many columns that was."""
    real = real[list(rows)]
    first = int(real.any(0).int().argmax())
    real, positions = real[:, first:], place.positions[list(rows), first:]
    end = int(torch.where(real, positions, -1).max()) + 1
    if bool(real.all()):
        return Place(positions[:1], None, end, place.length), first
    return Place(positions, real, end, place.length), first

"""Keeping the stream's states as they pass."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.flow import Look, Looks
from ..model.place import Place, join
from ..model.transformer import Transformer
from .reading import state_sites


class Recorder:
    """Looks for a pass (or several passes through a cache, one after another) that keep every state of the stream."""

    def __init__(self, transformer: Transformer):
        self._kept: dict[str, list[Tensor]] = {site: [] for site in state_sites(transformer)}
        self._first = next(iter(self._kept))
        self.place: Place | None = None

    @property
    def looks(self) -> Looks:
        """One look per state; each gives back the value as it came."""
        return {site: self._keeper(site) for site in self._kept}

    def _keeper(self, site: str) -> Look:
        kept = self._kept[site]

        def keep(value: Tensor, place: Place, _keys: Place | None) -> Tensor:
            if site == self._first:
                self.place = join(self.place, place)
            kept.append(value)
            return value

        return keep

    def states(self, first: int = 0) -> tuple[Float[Tensor, "B T D"], ...]:
        """Every state (from the `first` on, where a pass began there), the columns of all passes side by side."""
        found = list(self._kept.values())[first:]
        return tuple(kept[0] if len(kept) == 1 else torch.cat(kept, dim=1) for kept in found)

"""What travels with the stream through a forward pass, and how values are looked at."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from .config import Dropout
from .place import Place

Look = Callable[[Tensor, Place, Place | None], Tensor]  # value, where its rows stand, where its keys stand
Looks = Mapping[str, Look]
# Puts earlier keys and values before new ones: (layer, key, value, place) -> key, value, and the place of all of them.
Past = Callable[[int, Tensor, Tensor, Place], tuple[Tensor, Tensor, Place]]


@dataclass(frozen=True)
class Pass:
    """What one forward pass carries beside the stream."""

    place: Place
    rotation: tuple[Tensor, Tensor] | None = None
    past: Past | None = None
    looks: Looks | None = None
    dropout: Dropout = Dropout()

    def look(self, site: str, value: Tensor, keys: Place | None = None) -> Tensor:
        """Let whoever looks at this site see the value, and go on with what they give back."""
        see = self.looks.get(site) if self.looks else None
        return value if see is None else see(value, self.place, keys)

    def watches(self, *sites: str) -> bool:
        """Whether anyone looks at one of these sites."""
        return bool(self.looks) and any(site in self.looks for site in sites)

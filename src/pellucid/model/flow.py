"""What travels with the stream through a forward pass, and how values are looked at."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from .config import Dropout
from .place import Place, pick

Look = Callable[[Tensor, Place, Place | None], Tensor]  # value, where its rows stand, where its keys stand
Looks = Mapping[str, Look]
# Puts earlier keys and values before new ones: (layer, key, value, place) -> key, value, and the place of all of them.
Past = Callable[[int, Tensor, Tensor, Place], tuple[Tensor, Tensor, Place]]


@dataclass(frozen=True)
class Memory:
    """What a decoder attends to: the encoder's final stream (after its final norm, if it has one), and its place.

    With a `kept` mapping the keys and values made of it stay there by layer, for the next steps of decoding.
    """

    stream: Float[Tensor, "B S D"]
    place: Place
    kept: dict[int, tuple[Tensor, Tensor]] | None = None

    def keys_values(self, layer: int, make: Callable[[Tensor], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """A layer's keys and values of the memory, made once if they are kept."""
        if self.kept is None:
            return make(self.stream)
        if layer not in self.kept:
            self.kept[layer] = make(self.stream)
        return self.kept[layer]

    def pick(self, rows: Sequence[int]) -> "Memory":
        """The memory of some of the rows, in this order."""
        rows = list(rows)
        kept = None
        if self.kept is not None:
            kept = {layer: (key[rows], value[rows]) for layer, (key, value) in self.kept.items()}
        return Memory(self.stream[rows], pick(self.place, rows), kept)


@dataclass(frozen=True)
class Pass:
    """What one forward pass carries beside the stream."""

    place: Place
    rotation: tuple[Tensor, Tensor] | None = None
    past: Past | None = None
    looks: Looks | None = None
    dropout: Dropout = Dropout()
    memory: Memory | None = None

    def look(self, site: str, value: Tensor, keys: Place | None = None) -> Tensor:
        """Let whoever looks at this site see the value, and go on with what they give back."""
        see = self.looks.get(site) if self.looks else None
        return value if see is None else see(value, self.place, keys)

    def watches(self, *sites: str) -> bool:
        """Whether anyone looks at one of these sites."""
        return bool(self.looks) and not self.looks.keys().isdisjoint(sites)

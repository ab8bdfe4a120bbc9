"""Keys and values kept between the steps of decoding."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from .place import Place, join, narrowed


class Cache:
    """A growing cache: what every layer's keys and values were, and where they stand.

    `extend` says which columns come next; then the cache is the `past` of that pass. Memory is 2 x L x B x S x G x K
    values, taken in steps that double, so that a token costs no copy of what is there.
    """

    def __init__(self) -> None:
        self.place: Place | None = None
        self._before = 0
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    @property
    def columns(self) -> int:
        """How many columns (tokens and padding) are held."""
        return 0 if self.place is None else self.place.positions.shape[1]

    def extend(self, new: Place) -> None:
        """Announce the columns of the next pass."""
        self._before = self.columns
        self.place = join(self.place, new)

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order; columns that are padding in all of them are forgotten."""
        assert self.place is not None, "there is nothing to forget before the first pass"
        first = 0
        if self.place.real is not None:
            self.place, first = narrowed(self.place, self.place.real, rows)
        for store in (self._keys, self._values):
            for layer, held in store.items():
                store[layer] = held[list(rows), first:]

    def __call__(
        self, layer: int, key: Float[Tensor, "B T G K"], value: Float[Tensor, "B T G K"], place: Place
    ) -> tuple[Float[Tensor, "B S G K"], Float[Tensor, "B S G K"], Place]:
        """Store a layer's new keys and values; give back all of them with their place."""
        assert self.place is not None, "extend comes first"
        return self._append(self._keys, layer, key), self._append(self._values, layer, value), self.place

    def _append(self, store: dict[int, Tensor], layer: int, new: Tensor) -> Tensor:
        if self._before == 0:
            store[layer] = new
            return new
        held, needed = store[layer], self._before + new.shape[1]
        if held.shape[1] < needed:
            roomy = new.new_empty((new.shape[0], max(2 * self._before, needed, 64), *new.shape[2:]))
            roomy[:, : self._before] = held[:, : self._before]
            store[layer] = held = roomy
        held[:, self._before : needed] = new
        return held[:, :needed]

"""Keys and values kept between the steps of decoding."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from .config import Causal, Mask, Window
from .place import Place, first_seen, join, narrowed, tail


@dataclass
class _Held:
    """A layer's keys or values: `room` holds the columns from `first` on, and has space for more."""

    room: Tensor
    first: int


class Cache:
    """What the layers' keys and values were, and where they stand; a layer with a window forgets what it cannot see.

    `extend` says which columns come next; then the cache is the `past` of that pass. Without windows memory is
    2 x L x B x S x G x K values, taken in steps that double, so that a token costs no copy of what is there. A layer
    whose mask is `Window(n)` keeps n - 1 columns and a quarter more to move in (a rolling cache). `masks` is a cycle
    over the layers, as in the config.
    """

    def __init__(self, masks: Sequence[Mask] = (Causal(),)) -> None:
        self.place: Place | None = None
        self._masks = tuple(masks)
        self._before = 0
        self._seen: dict[int, tuple[int, Place]] = {}  # for each window: the first column in sight, and the place
        self._keys: dict[int, _Held] = {}
        self._values: dict[int, _Held] = {}

    @property
    def columns(self) -> int:
        """How many columns (tokens and padding) have been seen."""
        return 0 if self.place is None else self.place.positions.shape[1]

    def extend(self, new: Place) -> None:
        """Announce the columns of the next pass. Raises ValueError for rows of several documents."""
        if new.document is not None:
            raise ValueError("rows that hold several documents cannot be continued: give each a row of its own")
        before, self._before = self.place, self.columns
        self.place = join(before, new)
        self._seen.clear()
        for width in {mask.width for mask in self._masks if isinstance(mask, Window)}:
            first = 0 if before is None else first_seen(before, new, width)
            self._seen[width] = first, tail(self.place, first)

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order; columns that are padding in all of them are forgotten."""
        assert self.place is not None, "there is nothing to forget before the first pass"
        gone = 0
        if self.place.real is not None:
            self.place, gone = narrowed(self.place, self.place.real, rows)
        for store in (self._keys, self._values):
            for held in store.values():
                held.room = held.room[list(rows), max(0, gone - held.first) :]
                held.first = max(0, held.first - gone)

    def __call__(
        self, layer: int, key: Float[Tensor, "B T G K"], value: Float[Tensor, "B T G K"], place: Place
    ) -> tuple[Float[Tensor, "B S G K"], Float[Tensor, "B S G K"], Place]:
        """Store a layer's new keys and values; give back all that are in sight, with their place."""
        assert self.place is not None, "extend comes first"
        mask = self._masks[layer % len(self._masks)]
        width = mask.width if isinstance(mask, Window) else None
        first, seen = (0, self.place) if width is None else self._seen[width]
        keys = self._append(self._keys, layer, key, first, width)
        return keys, self._append(self._values, layer, value, first, width), seen

    def _append(self, store: dict[int, _Held], layer: int, new: Tensor, first: int, width: int | None) -> Tensor:
        """Put new columns behind those held; give back the columns from `first` on."""
        if self._before == 0:
            store[layer] = _Held(new, 0)
            return new
        held = store[layer]
        if held.room.shape[1] < self._before - held.first + new.shape[1]:
            kept = self._before - first
            spare = max(kept if width is None else width // 4, 64)
            roomy = new.new_empty((new.shape[0], kept + new.shape[1] + spare, *new.shape[2:]))
            roomy[:, :kept] = held.room[:, first - held.first : self._before - held.first]
            store[layer] = held = _Held(roomy, first)
        end = self._before - held.first + new.shape[1]
        held.room[:, self._before - held.first : end] = new
        return held.room[:, first - held.first : end]

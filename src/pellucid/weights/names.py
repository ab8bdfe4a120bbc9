"""Names of weights: one table for each layout on disk, read in both directions.

A table says which of the file's tensors make one of ours, with {} for the layer. Ours are [out, in]; a file's tensor
may be [in, out] (`transposed`), several of a file's may be stacked along the rows of one of ours (queries, keys and
values), and their rows may stand in another order (order.py).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from torch import Tensor

from ..model.config import Config
from ..model.transformer import Transformer
from .errors import CheckpointError
from .files import shown
from .order import Order

TOKENS = "embed.token.weight"
UNEMBED = "unembed.weight"
ENCODER = "encoder."  # before the names of an encoder's weights, which go by its own config
_T = TypeVar("_T")
_WRAPPERS = ("_orig_mod.", "module.")  # torch.compile's and DistributedDataParallel's


@runtime_checkable
class Shaped(Protocol):
    """What is known of a file's tensor before its numbers are read."""

    @property
    def shape(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class Entry:
    """One of our tensors, and the file's that hold it: one, or several to be stacked (queries, keys and values; or keys
    and values). Names without `.weight` or `.bias` stand for both.

    `order` says how the file's rows stand, where it is not ours. `row`: a vector that the file keeps
    as the one row of a matrix.
    """

    ours: str
    theirs: tuple[str, ...]
    transposed: bool = False
    order: Order | None = None
    row: bool = False

    def seen(self, theirs: Tensor) -> Tensor:
        """A file's tensor, turned as ours are; a view."""
        return theirs[0] if self.row else theirs.T if self.transposed and theirs.ndim == 2 else theirs

    def stored(self, ours: Tensor) -> Tensor:
        """The inverse of `seen`."""
        return ours[None] if self.row else ours.T if self.transposed and ours.ndim == 2 else ours

    def stored_shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of `stored`."""
        return (1, *ours) if self.row else ours[::-1] if self.transposed else ours

    def orders(self, rows: Sequence[int], config: Config) -> list[Tensor | None]:
        """For each of the file's tensors, of so many rows, which rows of its part of ours they are; None: the same."""
        if self.order is None:
            return [None] * len(rows)
        parts = self.order(config).split(list(rows))
        return [part - sum(rows[:i]) for i, part in enumerate(parts)]


@dataclass(frozen=True)
class Layout:
    """How a family's tensors are named on disk.

    `prefix` stands before every name but those that begin with one of `bare` when the whole model is saved, and may be
    absent. `ignored` are patterns of buffers that follow from the config (a causal mask, rotary frequencies), `renamed`
    pairs of a pattern and what older files' names become. `copies` are names under which a file may hold the same
    tensor again; saving writes the first.
    """

    name: str
    table: tuple[Entry, ...]
    prefix: str = ""
    bare: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    copies: tuple[tuple[str, ...], ...] = ()

    def of(self, ours: str) -> tuple[Entry, tuple[str, ...]]:
        """The entry of one of our names, and the file's names with the layer filled in, without prefix."""
        layer = re.search(r"\.(\d+)\.", ours)
        pattern = ours if layer is None else ours.replace(layer[0], ".{}.", 1)
        stem, _, part = pattern.rpartition(".")
        for entry in self.table:
            if entry.ours in (pattern, stem):
                ending = f".{part}" if entry.ours == stem else ""
                return entry, tuple(name.format(layer[1] if layer else "") + ending for name in entry.theirs)
        raise CheckpointError(f"the {self.name} layout has no place for {ours}")

    def has(self, ours: str) -> bool:
        """Whether there is an entry for one of our names that no layer is in."""
        return any(entry.ours == ours for entry in self.table)

    def full(self, name: str) -> str:
        """A file's name as the whole model's file has it."""
        return name if name.startswith(self.bare) else self.prefix + name


def clean(layout: Layout, tensors: Mapping[str, _T]) -> dict[str, _T]:
    """The file's tensors under their plain names: wrappers and the layout's prefix stripped, ignored buffers left out.

    Only leading wrappers are stripped, so that a `module.` inside a name survives. Raises CheckpointError where two
    names become one.
    """
    plain: dict[str, _T] = {}
    origin: dict[str, str] = {}
    for stored, tensor in tensors.items():
        name = stored
        while name.startswith(_WRAPPERS):
            name = name.split(".", 1)[1]
        name = name.removeprefix(layout.prefix)
        if any(re.fullmatch(pattern, name) for pattern in layout.ignored):
            continue
        for old, new in layout.renamed:
            name = re.sub(old, new, name)
        if name in plain:
            raise CheckpointError(f"two tensors of the checkpoint have one name, {name}: {origin[name]} and {stored}")
        plain[name], origin[name] = tensor, stored
    return plain


def check_layers(layout: Layout, tensors: Mapping[str, Shaped], config: Config) -> None:
    """Refuse a config of more layers than there are tensors, before anything is made for each of them."""
    encoder = config.encoder
    layers = config.n_layers + (encoder.n_layers if encoder else 0)
    if layers > len(tensors):
        raise CheckpointError(
            f"the checkpoint's tensors do not fit its config ({layout.name}); "
            f"{layers} layers need more than its {len(tensors)} tensors"
        )


def plan(layout: Layout, tensors: Mapping[str, Shaped], like: Transformer) -> dict[str, tuple[str, ...]]:
    """For each weight of `like`, the file's tensors it is made of, all of them checked before any number is read.

    Raises CheckpointError that lists the missing and the left-over tensors, or those of another shape.
    """
    wanted = like.state_dict()
    made = {ours: layout.of(ours)[1] for ours in wanted}
    needed = {name for names in made.values() for name in names}
    missing, left = sorted(needed - set(tensors)), sorted(set(tensors) - needed)
    if missing or left:
        parts = [f"{len(missing)} missing: {shown(missing, most=20)}"] if missing else []
        parts += [f"{len(left)} not known: {shown(left, most=20)}"] if left else []
        raise CheckpointError(f"the checkpoint's tensors do not fit its config ({layout.name}); {'; '.join(parts)}")
    wrong = []
    for ours, names in made.items():
        entry, shape = layout.of(ours)[0], tuple(wanted[ours].shape)
        for name, count in zip(names, rows(entry, wanted[ours], like.config), strict=True):
            expected = entry.stored_shape((count, *shape[1:]))
            got = tuple(tensors[name].shape)
            if got != expected:
                wrong.append(f"{name} must have shape {list(expected)}, got {list(got)}")
    if wrong:
        raise CheckpointError(
            f"the checkpoint's tensors do not fit its config ({layout.name}); {'; '.join(wrong[:20])}"
        )
    return made


def write(layout: Layout, state: Mapping[str, Tensor], config: Config) -> dict[str, Tensor]:
    """Our state dict as the layout's files name and shape it: views, nothing is copied but rows that change places.

    Tied weights are stored once, as the token embedding.
    """
    tensors = {}
    for ours, tensor in state.items():
        entry, names = layout.of(ours)
        counts = rows(entry, tensor, config)
        orders = entry.orders(counts, part_of(config, ours))
        for name, part, order in zip(names, tensor.split(counts), orders, strict=True):
            tensors[layout.full(name)] = entry.stored(part if order is None else part[order.to(part.device)])
    return tensors


def part_of(config: Config, ours: str) -> Config:
    """The config that one of our tensors goes by: the encoder's own for the encoder's."""
    encoder = config.encoder
    return encoder if encoder is not None and ours.startswith(ENCODER) else config


def rows(entry: Entry, tensor: Shaped, config: Config) -> list[int]:
    """How many rows of our tensor each of the file's holds."""
    if len(entry.theirs) == 1:
        return [tensor.shape[0]]
    part = part_of(config, entry.ours)
    keys = part.n_kv_heads * part.d_head
    return [keys, keys] if len(entry.theirs) == 2 else [part.n_heads * part.d_head, keys, keys]

"""Names of weights: one table for each layout on disk, read in both directions.

A table says which of the file's tensors make one of ours, with {} for the layer. Ours are [out, in]; a file's tensor
may be [in, out] (`transposed`), and several of a file's may be stacked along the rows of one of ours (queries, keys and
values).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from ..model.config import Config
from ..model.rotary import Rotary
from ..model.transformer import Transformer
from .errors import CheckpointError
from .files import shown
from .rotation import interleaved

TOKENS = "embed.token.weight"
UNEMBED = "unembed.weight"
_T = TypeVar("_T")
_WRAPPERS = ("_orig_mod.", "module.")  # torch.compile's and DistributedDataParallel's


@runtime_checkable
class Shaped(Protocol):
    """What is known of a file's tensor before its numbers are read."""

    @property
    def shape(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class Entry:
    """One of our tensors, and the file's that hold it: one, or queries, keys and values to be stacked.

    `interleaved`: the file's queries and keys pair neighbours for rotation (rotation.py).
    """

    ours: str
    theirs: tuple[str, ...]
    transposed: bool = False
    interleaved: bool = False


@dataclass(frozen=True)
class Layout:
    """How a family's tensors are named on disk.

    `prefix` stands before every name but `bare` ones when the whole model is saved, and may be absent. `ignored` are
    patterns of buffers that follow from the config (a causal mask, rotary frequencies).
    """

    name: str
    table: tuple[Entry, ...]
    prefix: str = ""
    bare: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def of(self, ours: str) -> tuple[Entry, tuple[str, ...]]:
        """The entry of one of our names, and the file's names with the layer filled in, without prefix."""
        layer = re.search(r"\.(\d+)\.", ours)
        pattern = ours if layer is None else ours.replace(layer[0], ".{}.", 1)
        for entry in self.table:
            if entry.ours == pattern:
                return entry, tuple(name.format(layer[1] if layer else "") for name in entry.theirs)
        raise CheckpointError(f"the {self.name} layout has no place for {ours}")

    def full(self, name: str) -> str:
        """A file's name as the whole model's file has it."""
        return name if name in self.bare else self.prefix + name


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
        if name in plain:
            raise CheckpointError(f"two tensors of the checkpoint have one name, {name}: {origin[name]} and {stored}")
        plain[name], origin[name] = tensor, stored
    return plain


def check_layers(layout: Layout, tensors: Mapping[str, Shaped], config: Config) -> None:
    """Refuse a config of more layers than there are tensors, before anything is made for each of them."""
    if config.n_layers > len(tensors):
        raise CheckpointError(
            f"the checkpoint's tensors do not fit its config ({layout.name}); "
            f"{config.n_layers} layers need more than its {len(tensors)} tensors"
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
        for name, expected in zip(names, _stored_shapes(layout, ours, wanted[ours], like.config), strict=True):
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
        if entry.interleaved:
            queries, keys, values = tensor.split(stacked(config))
            width = rotated(config)
            queries, keys = interleaved(queries, config.n_heads, width), interleaved(keys, config.n_kv_heads, width)
            tensor = torch.cat((queries, keys, values))
        parts = tensor.split(rows(entry, tensor, config))
        for name, part in zip(names, parts, strict=True):
            tensors[layout.full(name)] = part.T if entry.transposed else part
    return tensors


def rows(entry: Entry, tensor: Shaped, config: Config) -> list[int]:
    """How many rows of our tensor each of the file's holds."""
    if len(entry.theirs) == 1:
        return [tensor.shape[0]]
    return stacked(config)


def stacked(config: Config) -> list[int]:
    """How many rows of the stacked matrix are queries, keys and values."""
    return [heads * config.d_head for heads in (config.n_heads, config.n_kv_heads, config.n_kv_heads)]


def rotated(config: Config) -> int:
    """How many of a head's features are rotated."""
    return config.positions.width(config.d_head) if isinstance(config.positions, Rotary) else 0


def _stored_shapes(layout: Layout, ours: str, tensor: Tensor, config: Config) -> list[tuple[int, ...]]:
    entry, _ = layout.of(ours)
    shapes = [(count, *tensor.shape[1:]) for count in rows(entry, tensor, config)]
    return [shape[::-1] if entry.transposed else shape for shape in shapes]

"""Edits made ready for a model: checked, and turned into looks."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..model.config import Config
from ..model.flow import Look
from ..model.place import Place
from ..model.sites import Site
from ..model.transformer import Transformer
from .edits import REPLACING, Edit
from .errors import EditError
from .names import check_name
from .reading import all_sites, chained

_NOWHERE = 2**62  # the position of a padded key, where no value reaches


@dataclass(frozen=True, eq=False)
class Change:
    """One edit of one site of one model. `group` is how many query heads share a key-value head."""

    edit: Edit
    site: Site
    group: int

    def __call__(self, value: Tensor, place: Place, keys: Place | None) -> Tensor:
        """The value with the edit made; the one that came is left as it is."""
        edit = self.edit
        if edit.whole and edit.function is not None:
            return _mapped(edit, value)
        time = self.site.axes.index("T")
        rows = value.movedim(time, 1)  # B T ...
        if edit.positions is None and edit.at is None and place.real is None:  # every column, as while decoding
            here = rows.flatten(0, 1)
            changed = self.narrowed(here, _Spots.everywhere(rows.shape[0], place, keys)).unflatten(0, rows.shape[:2])
            return changed.movedim(1, time)
        at = self.columns(place).expand(value.shape[0], -1)
        if not bool(at.any()):
            return value
        here = rows[at]  # N ...: the columns that are reached
        changed = self.narrowed(here, _Spots.of(at, place, keys))
        return rows.index_put((at,), changed).movedim(1, time)

    def columns(self, place: Place) -> Bool[Tensor, "b T"]:
        """Which columns the edit reaches: tokens, at its positions."""
        at = torch.ones_like(place.positions, dtype=torch.bool) if place.real is None else place.real
        for wanted in (self.edit.positions, self.edit.at):
            if wanted is not None:
                at = at & torch.isin(place.positions, torch.tensor(wanted, device=place.positions.device))
        return at

    def narrowed(self, here: Tensor, spots: "_Spots") -> Tensor:
        """What becomes of reached columns [N ...]: of all that they hold, or of the chosen heads, neurons or keys."""
        inner = self.inner()
        if inner is None:
            changed = self.changed(here, spots)
        else:
            axis, index = inner
            changed = here.movedim(axis, 1).clone()
            changed[:, index] = self.changed(changed[:, index], spots)
            changed = changed.movedim(1, axis)
        if self.edit.keys is not None:
            changed = torch.where(spots.chosen(self.edit.keys, here), changed, here)
        return spots.at_tokens(changed, here)

    def inner(self) -> tuple[int, list[int]] | None:
        """Which axis after the positions is narrowed, and to what; axis 0 stands for the positions."""
        edit, axes = self.edit, ["N", *(axis for axis in self.site.axes if axis not in ("B", "T"))]
        if edit.kv_heads is not None and "G" not in axes:
            each = [self.group * head + i for head in edit.kv_heads for i in range(self.group)]
            return axes.index("H"), each
        for axis, choice in (("H", edit.heads), ("G", edit.kv_heads), ("F", edit.neurons)):
            if choice is not None:
                return axes.index(axis), list(choice)
        return None

    def changed(self, here: Tensor, spots: "_Spots") -> Tensor:
        """What becomes of the chosen values [N ...]."""
        edit = self.edit
        match edit.kind:
            case "zero":
                return torch.zeros_like(here)
            case "scale":
                return here * edit.factor
            case "noise":
                return here + edit.factor * self.random(here, spots)
            case "knockout":
                return torch.full_like(here, -torch.inf)
            case "map":
                return _mapped(edit, here)
            case "add":
                return here + self.value(here, spots)
        return self.value(here, spots).expand_as(here).clone(memory_format=torch.contiguous_format)

    def value(self, here: Tensor, spots: "_Spots") -> Tensor:
        """The edit's own value, for each of N positions where it has one for each."""
        edit, inner = self.edit, self.inner()
        assert edit.value is not None
        value = edit.value.to(here)
        if edit.at is None and edit.keys is not None and value.ndim:
            by_key = value.new_zeros(max(edit.keys) + 1)
            by_key[list(edit.keys)] = value
            return spots.by_key(by_key.expand(*here.shape[:-1], -1), here)
        if edit.at is None:
            return value if inner is None or not edit.full else value.movedim(inner[0] - 1, 0)[inner[1]]
        value = value[spots.positions - edit.at[0]]
        if inner is not None:
            value = value.movedim(inner[0], 1)[:, inner[1]]
        return spots.by_key(value, here) if self.site.axes[-1] == "S" else value

    def random(self, here: Tensor, spots: "_Spots") -> Tensor:
        """The same numbers for a position in every run."""
        drawn = {}
        for position in set(spots.positions.tolist()):
            seed = zlib.crc32(f"{self.edit.seed} {self.site.name} {position}".encode())
            drawn[position] = torch.randn(here.shape[1:], generator=torch.Generator().manual_seed(seed))
        return torch.stack([drawn[position] for position in spots.positions.tolist()]).to(here)


@dataclass(frozen=True, eq=False)
class _Spots:
    """Where N reached columns stand, and where the keys of their rows do."""

    positions: Int[Tensor, "N"]
    keys: Int[Tensor, "N S"] | None

    @classmethod
    def of(cls, at: Bool[Tensor, "B T"], place: Place, keys: Place | None) -> "_Spots":
        theirs = None if keys is None else _key_positions(keys).expand(at.shape[0], -1)[at.nonzero()[:, 0]]
        return cls(place.positions.expand(at.shape)[at], theirs)

    @classmethod
    def everywhere(cls, rows: int, place: Place, keys: Place | None) -> "_Spots":
        """All columns of all rows."""
        positions = place.positions.expand(rows, -1)
        theirs = None if keys is None else _key_positions(keys).expand(rows, -1)
        each = None if theirs is None else theirs.repeat_interleave(positions.shape[1], 0)
        return cls(positions.flatten(), each)

    def at_tokens(self, changed: Tensor, here: Tensor) -> Tensor:
        """Changed values [N ... S], those of padded keys as they were."""
        if self.keys is None:
            return changed
        padded = (self.keys == _NOWHERE).reshape(self.keys.shape[0], *[1] * (here.ndim - 2), -1)
        return torch.where(padded, here, changed)

    def chosen(self, wanted: tuple[int, ...], here: Tensor) -> Tensor:
        """Which scores [N ... S] are those of the wanted keys."""
        assert self.keys is not None, "a plan refuses keys where a site has none"
        hit = torch.isin(self.keys, torch.tensor(wanted, device=here.device))
        return hit.reshape(hit.shape[0], *[1] * (here.ndim - 2), -1).expand_as(here)

    def by_key(self, value: Tensor, here: Tensor) -> Tensor:
        """Values [N ... S'] put at the keys' own positions; keys that the values do not reach keep what they have."""
        if self.keys is None:
            return value
        keys = self.keys.reshape(self.keys.shape[0], *[1] * (here.ndim - 2), -1).expand_as(here)
        found = value.gather(-1, keys.clamp(max=value.shape[-1] - 1))
        return torch.where(keys < value.shape[-1], found, here)


def _key_positions(keys: Place) -> Int[Tensor, "b S"]:
    return keys.positions if keys.real is None else keys.positions.masked_fill(~keys.real, _NOWHERE)


def _mapped(edit: Edit, value: Tensor) -> Tensor:
    assert edit.function is not None, "only a map has a function"
    found = edit.function(value.clone())  # a function that works in place changes no stored value
    if not isinstance(found, Tensor) or found.shape != value.shape:
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise EditError(f"the function at {edit.site} must give back shape {tuple(value.shape)}, got {got}")
    return found


@dataclass(frozen=True, eq=False)
class Plan:
    """The edits of a run, in order, each for a site that the model has."""

    changes: tuple[Change, ...] = ()

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits as they were given."""
        return tuple(change.edit for change in self.changes)

    def looks(self, leave_out: Sequence[str] = ()) -> dict[str, Look]:
        """One look for each edited site, but those left out."""
        by_site: dict[str, list[Change]] = {}
        for change in self.changes:
            if change.site.name not in leave_out:
                by_site.setdefault(change.site.name, []).append(change)
        return {site: chained(changes) for site, changes in by_site.items()}

    def sites(self) -> list[str]:
        """The names of the edited sites."""
        return [change.site.name for change in self.changes]


def plan(transformer: Transformer, edits: Sequence[Edit]) -> Plan:
    """Check edits against a model. Raises SiteError or EditError that says what was expected and what came."""
    known = {site.name: site for site in all_sites(transformer)}
    changes = []
    for edit in edits:
        if not isinstance(edit, Edit):
            got = type(edit).__name__
            raise EditError(f"an edit is made by zero, set, add, ..., and several follow one another, got a {got}")
        site = known[check_name(edit.site, list(known))]
        config = transformer.config
        if config.encoder is not None and site.name.startswith("encoder."):
            config = config.encoder
        _check(edit, site, config)
        changes.append(Change(edit, site, config.n_heads // config.n_kv_heads))
    for first, second in combinations(changes, 2):
        if first.site == second.site and _collide(first.edit, second.edit):
            raise EditError(f"two edits replace the same numbers of {first.site.name}: leave one out, or narrow them")
    return Plan(tuple(changes))


def _check(edit: Edit, site: Site, config: Config) -> None:
    if "T" not in site.axes or site.name.endswith("next_sentence"):
        raise EditError(f"{site.name} stands after the stream: an edit there changes nothing else")
    if edit.heads is not None and "H" not in site.axes:
        raise EditError(f"{site.name} has no query heads" + (": use kv_head=" if "G" in site.axes else ""))
    sizes = {"head": config.n_heads, "kv_head": config.n_kv_heads, "neuron": config.d_ff}
    axes = {"head": "H", "kv_head": "HG", "neuron": "F"}
    for name, choice in (("head", edit.heads), ("kv_head", edit.kv_heads), ("neuron", edit.neurons)):
        if choice is None:
            continue
        if not set(axes[name]) & set(site.axes):
            raise EditError(f"{site.name} cannot be narrowed by {name}=: its axes are {' '.join(site.axes)}")
        if not choice or not all(0 <= each < sizes[name] for each in choice):
            raise EditError(f"{name} must lie in 0..{sizes[name] - 1} at {site.name}, got {list(choice)}")
    if sum(choice is not None for choice in (edit.heads, edit.kv_heads, edit.neurons)) > 1:
        raise EditError(f"an edit of {site.name} is narrowed by one of head=, kv_head= and neuron=, not by several")
    for name, places in (("position", edit.positions), ("key", edit.keys)):
        if places is not None and (not places or min(places) < 0):
            raise EditError(f"{name} counts from 0, absolutely, and needs at least one place, got {list(places)}")
    if edit.keys is not None and site.axes[-1] != "S":
        raise EditError(f"{site.name} cannot be narrowed by key=: its axes are {' '.join(site.axes)}")
    if edit.value is not None:
        _check_value(edit, site, config)


def _check_value(edit: Edit, site: Site, config: Config) -> None:
    """A value must fit the site at one position; what each position has must fit all of it."""
    assert edit.value is not None
    sizes = dict(zip(site.axes, replace(site, name="").shape(config, 1), strict=True))
    narrow = {} if edit.full else {"H": edit.heads, "G": edit.kv_heads, "F": edit.neurons}
    if not edit.full and edit.kv_heads is not None and "G" not in site.axes:
        narrow["H"] = edit.kv_heads * (config.n_heads // config.n_kv_heads)
    shape = [sizes[axis] for axis in site.axes if axis not in ("B", "T", "S")]
    got, keys = list(edit.value.shape), site.axes[-1] == "S"
    if edit.at is not None:
        if len(got) != 1 + len(shape) + keys or got[1 : 1 + len(shape)] != shape or got[0] != len(edit.at):
            raise EditError(f"{site.name} has shape {shape} at each position, the value {got[1:]}")
        return
    if keys and got and edit.keys is not None:
        if got != [len(edit.keys)]:
            raise EditError(f"a value for {site.name} has one number for each of keys {list(edit.keys)}, got {got}")
        return
    chosen = [len(narrow.get(axis) or ()) or sizes[axis] for axis in site.axes if axis not in ("B", "T")]
    try:
        fits = list(torch.broadcast_shapes(tuple(got), tuple(chosen))) == chosen
    except RuntimeError:
        fits = False
    if keys and got:
        raise EditError(f"a value for {site.name} is a number, or one for each of the keys chosen by key=, got {got}")
    if not fits:
        raise EditError(f"a value for {site.name} must fit shape {chosen} (no batch, no position), got {got}")


def _collide(first: Edit, second: Edit) -> bool:
    """Whether both replace the same numbers, so that the first would be lost."""
    if not (first.kind in REPLACING and second.kind in REPLACING) or first.kind == second.kind == "knockout":
        return False
    pairs = [(first.heads, second.heads), (first.kv_heads, second.kv_heads), (first.neurons, second.neurons)]
    pairs += [(first.keys, second.keys), (_reach(first), _reach(second))]
    return all(one is None or other is None or set(one) & set(other) for one, other in pairs)


def _reach(edit: Edit) -> tuple[int, ...] | None:
    """The positions that an edit reaches, None for all."""
    if edit.positions is None or edit.at is None:
        return edit.at if edit.positions is None else edit.positions
    return tuple(set(edit.positions) & set(edit.at))

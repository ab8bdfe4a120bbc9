"""Edits as data: what to change in a forward pass, by the name of the value. Nothing is registered anywhere.

An edit names a site and may narrow it to heads, neurons and positions; it says what becomes of the value there. Edits
are applied in the order given. They can be written to JSON and read back, a free function excepted.
"""

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .errors import EditError

Choice = int | Sequence[int] | None
KINDS = ("zero", "set", "add", "scale", "noise", "knockout")
REPLACING = ("zero", "set", "knockout")  # two of these on the same numbers would hide one another


@runtime_checkable
class Source(Protocol):
    """Where values come from: a trace."""

    @property
    def ids(self) -> Tensor: ...
    def by_position(self, site: str, row: int = 0) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Edit:
    """One change of one site; made by `zero`, `set_to`, `add`, ... below.

    `heads`, `kv_heads`, `neurons` and `positions` narrow it (None: all). Positions are absolute, padding not counted;
    `keys` are the key positions of scores or a pattern, of which a value may hold one number for each. Else `value` is
    what is set or added: of the site's axes without B and T and as far as it is chosen (`full`: of all heads or
    neurons, of which those chosen are taken), or with a leading axis of one value for each of the positions `at`.
    `function` maps the value.
    """

    kind: str
    site: str
    heads: tuple[int, ...] | None = None
    kv_heads: tuple[int, ...] | None = None
    neurons: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None
    keys: tuple[int, ...] | None = None
    value: Tensor | None = None
    at: tuple[int, ...] | None = None
    factor: float = 1.0
    seed: int = 0
    function: Callable[[Tensor], Tensor] | None = None
    whole: bool = False
    full: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.site, str):
            raise EditError(f"an edit names a site, such as '3.attention.heads', got {self.site!r}")
        if not math.isfinite(self.factor) or (self.kind == "noise" and self.factor < 0):
            needed = "at least 0" if self.kind == "noise" else "finite"
            raise EditError(f"the number of an edit of {self.site} must be {needed}, got {self.factor}")
        if self.value is not None and bool(self.value.isnan().any()):
            raise EditError(f"the value for {self.site} holds what is not a number (NaN)")

    def to_json(self) -> dict[str, Any]:
        """The edit as plain data. Raises EditError for a free function, which has no such form."""
        if self.function is not None:
            raise EditError(f"the edit of {self.site} is a free function, which cannot be written as data")
        plain = {name: value for name, value in vars(self).items() if value is not None}
        if self.value is not None:
            plain["value"] = self.value.double().tolist()
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Edit":
        """An edit from its plain data. Raises EditError for a field or a kind that there is not."""
        known = {*cls.__dataclass_fields__} - {"function"}
        if unknown := sorted(set(data) - known):
            raise EditError(f"an edit has no field {', '.join(unknown)}; it has {', '.join(sorted(known))}")
        if data.get("kind") not in KINDS or not isinstance(data.get("site"), str):
            raise EditError(f"an edit needs a site and a kind, one of {', '.join(KINDS)}, got {data.get('kind')!r}")
        values: dict[str, Any] = dict(data)
        values |= {name: tuple(value) for name, value in data.items() if isinstance(value, list)}
        if data.get("value") is not None:
            values["value"] = torch.tensor(data["value"], dtype=torch.float64)
        return cls(**values)


def zero(site: str, **where: Choice) -> Edit:
    """Set to zero. `where`: head=, kv_head=, neuron=, position=, and of scores key=; one number or several."""
    return Edit("zero", site, **narrowed(where))


def set_to(site: str, value: Float[Tensor, "..."] | float | Sequence[float], **where: Choice) -> Edit:
    """Set to a value: a number, or a tensor of the site's axes without batch and position, as far as chosen.

    Of scores or a pattern a number, or one for each key=: `set_to("3.attention.scores", [2.0, 0.5], key=[1, 4])`.
    """
    return Edit("set", site, value=_numbers(site, value), **narrowed(where))


def add(site: str, value: Float[Tensor, "..."] | float | Sequence[float], **where: Choice) -> Edit:
    """Add a value, as in `set_to`: a steering vector on a stream, for one."""
    return Edit("add", site, value=_numbers(site, value), **narrowed(where))


def scale(site: str, factor: float, **where: Choice) -> Edit:
    """Multiply by a number."""
    return Edit("scale", site, factor=float(factor), **narrowed(where))


def noise(site: str, std: float, seed: int = 0, **where: Choice) -> Edit:
    """Add Gaussian noise (Meng et al. 2022), seeded by seed, site and position: the same whatever else is run."""
    return Edit("noise", site, factor=float(std), seed=seed, **narrowed(where))


def knockout(site: str, key: Choice = None, **where: Choice) -> Edit:
    """Hide keys from queries (position=): their scores become -inf, and the pattern sums to 1 over what is left.

    Attention knockout (Geva et al. 2023), at "{l}.attention.scores". A query whose every key is hidden attends to
    nothing.
    """
    if not site.endswith(".scores"):
        raise EditError(f"a knockout hides attention scores: name a site such as '3.attention.scores', got {site!r}")
    return Edit("knockout", site, keys=chosen(key), **narrowed(where))


def patch(site: str, source: Source, row: int = 0, **where: Choice) -> Edit:
    """Set to what another trace has at the same positions (Vig et al. 2020), all that it has or those chosen."""
    if not isinstance(source, Source):
        raise EditError(f"a patch takes its value from a trace, got {type(source).__name__}")
    value = source.by_position(site, row)
    return Edit("set", site, value=value, at=tuple(range(len(value))), **narrowed(where))


def resample(site: str, source: Source, seed: int = 0, **where: Choice) -> Edit:
    """Set to what one row of a trace has, drawn at random (causal scrubbing, Chan et al. 2022)."""
    return patch(site, source, random.Random(seed).randrange(source.ids.shape[0]), **where)


def mean(site: str, over: Source, pooled: bool = False, **where: Choice) -> Edit:
    """Set to the mean over a trace's rows, by position (over rows that reach it), or `pooled` over positions too."""
    rows = [over.by_position(site, row) for row in range(over.ids.shape[0])]
    widest = max(row.shape[-1] for row in rows)  # rows of a pattern are as wide as the keys they see
    rows = [F.pad(row, (0, widest - row.shape[-1])) for row in rows]
    if pooled:
        return Edit("set", site, value=torch.cat(rows).mean(0), full=True, **narrowed(where))
    longest = max(len(row) for row in rows)
    means = [torch.stack([row[t] for row in rows if t < len(row)]).mean(0) for t in range(longest)]
    return Edit("set", site, value=torch.stack(means), at=tuple(range(longest)), **narrowed(where))


def freeze(site: str, source: Source, row: int = 0, **where: Choice) -> Edit:
    """Keep a pattern or a norm's scale as it was in a trace, whatever else is edited."""
    if not site.endswith((".pattern", "scale")):
        raise EditError(f"a pattern or a norm's scale can be frozen, got {site!r}: patch sets any site")
    return patch(site, source, row, **where)


def map_with(site: str, function: Callable[[Tensor], Tensor], whole: bool = False, **where: Choice) -> Edit:
    """Apply a function: to the chosen values of every position by itself, [positions, ...], or to the `whole` site.

    A function of the whole site sees all positions at once, so it can neither decode nor restart at a position.
    """
    return Edit("map", site, function=function, whole=whole, **narrowed(where))


def _numbers(site: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise EditError(f"a value for {site!r} is a tensor or a number, got {value!r}") from error


def narrowed(where: Mapping[str, Choice]) -> dict[str, Any]:
    """head=, kv_head=, neuron=, position= and key= as fields of an Edit. Raises EditError for other words."""
    fields = {"head": "heads", "kv_head": "kv_heads", "neuron": "neurons", "position": "positions", "key": "keys"}
    if unknown := [name for name in where if name not in fields]:
        raise EditError(f"an edit is narrowed by {', '.join(fields)}, got {', '.join(unknown)}")
    return {fields[name]: chosen(choice) for name, choice in where.items()}


def chosen(choice: Choice) -> tuple[int, ...] | None:
    """One number or several as a tuple; None stays None."""
    if choice is None:
        return None
    every = [choice] if isinstance(choice, int) else choice
    if isinstance(every, str) or not isinstance(every, Iterable):
        raise EditError(f"a choice is a whole number or several of them, got {choice!r}")
    every = list(every)
    if not all(isinstance(each, Integral) and not isinstance(each, bool) for each in every):
        raise EditError(f"a choice is a whole number or several of them, got {choice!r}")
    return tuple(int(each) for each in every)

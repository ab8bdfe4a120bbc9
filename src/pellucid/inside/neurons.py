"""Every neuron of every layer over a corpus, in one pass: the texts that it is strongest on, its mean, how often it is
active.

The corpus is an iterator of rows of token ids and may be of any size: what is kept does not grow with it. A scan can be
kept in a folder, and goes on there where it was stopped.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..text import Tokenizer
from ..views.table import Table
from .neuron_store import read, write
from .strongest import Strongest

Row = Iterable[int] | Tensor
Progress = Callable[[int], object]  # told how many tokens more were read
_STATE = ("model", "digest", "rows", "tokens", "done")


@dataclass(frozen=True)
class Scan:
    """How a corpus is read. `k` texts are kept for each neuron, with `before` and `after` tokens around the one it is
    strongest on; `lowest` keeps the most negative values too; `batch` rows run at a time; the first `skip` tokens of
    each row are read and not counted (models put very large values on the token that begins a text)."""

    k: int = 10
    lowest: bool = False
    batch: int = 8
    before: int = 12
    after: int = 4
    skip: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = int(name in ("k", "batch"))
            if isinstance(value, bool) != (name == "lowest") or not isinstance(value, int) or value < least:
                kind = "True or False" if name == "lowest" else f"a whole number from {least}"
                raise ValueError(f"{name} must be {kind}, got {value!r}")


@dataclass(frozen=True, eq=False, repr=False)
class Neurons:
    """What was seen of every neuron: `rows` texts, `tokens` counted in them.

    `highest` and `lowest` (its values with their sign turned, None unless asked for) say of each value its row, its
    position there, and the ids around it, -1 where there are none. `model` and `digest` are the fingerprints of the
    weights and of the rows; `done` says that no row was left.
    """

    settings: Scan
    highest: Strongest
    lowest: Strongest | None
    sums: Float[Tensor, "L F"]
    active: Int[Tensor, "L F"]
    model: str
    digest: str = ""
    rows: int = 0
    tokens: int = 0
    done: bool = False
    tokenizer: Tokenizer | None = None

    @classmethod
    def load(cls, folder: str | os.PathLike[str], tokenizer: Tokenizer | None = None, device: str = "cpu") -> "Neurons":
        """A scan that was kept in a folder, finished or not. Raises ValueError for what is none, or is damaged."""
        state, tensors = read(folder, device)
        try:
            settings = Scan(**state["settings"])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{os.fspath(folder)}: its settings are not those of a scan: {error}") from error
        _check_tensors(folder, tensors, settings)
        kept = [Strongest(tensors[f"{name}.values"], tensors[f"{name}.seen"]) for name in _kept(settings)]
        lowest = kept[1] if settings.lowest else None
        fields = {name: state[name] for name in _STATE}
        return cls(settings, kept[0], lowest, tensors["sums"], tensors["active"], tokenizer=tokenizer, **fields)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Keep the scan in a folder, in place of one that stands there."""
        tensors = {"sums": self.sums, "active": self.active}
        for name in _kept(self.settings):
            kept: Strongest = vars(self)[name]
            tensors |= {f"{name}.values": kept.values, f"{name}.seen": kept.seen}
        write(folder, {"settings": vars(self.settings), **{name: vars(self)[name] for name in _STATE}}, tensors)

    @property
    def mean(self) -> Float[Tensor, "L F"]:
        """The mean value of each neuron over all tokens, summed in float64."""
        return self.sums / self.tokens

    @property
    def fraction(self) -> Float[Tensor, "L F"]:
        """The share of tokens at which each neuron's value is above 0; of a gated one, its gated value."""
        return self.active.double() / self.tokens

    def texts(self, layer: int, neuron: int, k: int | None = None, lowest: bool = False) -> Table:
        """The texts that a neuron is strongest on: its value, the token it has it at, and what stands around it."""
        self._check(layer, neuron)
        kept, sign = (self.lowest, -1) if lowest else (self.highest, 1)
        if kept is None:
            raise ValueError("the lowest values were not kept: scan with Scan(lowest=True)")
        rows = []
        for value, (row, at, *ids) in zip(
            kept.values[layer, :k, neuron].tolist(), kept.seen[layer, :k, neuron].tolist(), strict=True
        ):
            if row >= 0:
                here = self.settings.before
                words = (self._text(ids[:here]), self._label(ids[here]), self._text(ids[here + 1 :]))
                rows.append((sign * value, *words, row, at))
        columns = ("value", "before", "token", "after", "row", "position")
        which = "most negative" if lowest else "strongest"
        note = f"mean {self.mean[layer, neuron]:.4f}, above 0 at {self.fraction[layer, neuron]:.2%} of "
        return Table(f"neuron {layer}.{neuron}, {which}", columns, tuple(rows), f"{note}{self.tokens:,} tokens")

    def firing(self, token: str | int, k: int = 20) -> Table:
        """The neurons that have this token most often among those they are strongest on, then by their highest value
        there."""
        wanted = self._id(token)
        hits = self.highest.seen[..., 2 + self.settings.before] == wanted  # L k F
        share, best = hits.sum(1), self.highest.values.masked_fill(~hits, -torch.inf).amax(1)
        found = (share.flatten() > 0).nonzero().flatten()
        order = best.flatten()[found].argsort(descending=True, stable=True)
        order = order[share.flatten()[found][order].argsort(descending=True, stable=True)][:k]
        places = [divmod(at, share.shape[1]) for at in found[order].tolist()]
        rows = [(*at, int(share[at]), float(best[at]), float(self.fraction[at])) for at in places]
        columns = ("layer", "neuron", f"of its {self.settings.k}", "highest there", "active")
        return Table(f"neurons that are strongest on {self._label(wanted)}", columns, tuple(rows))

    def table(self, layer: int | None = None) -> Table:
        """Every neuron (of one layer): its highest value and the token there, its mean, its share above 0."""
        layers = range(self.highest.values.shape[0]) if layer is None else (layer,)
        rows: list[tuple[object, ...]] = []
        for at in layers:
            self._check(at, 0)
            tokens = self.highest.seen[at, 0, :, 2 + self.settings.before].tolist()
            numbers = [each[at].tolist() for each in (self.highest.values[:, 0], self.mean, self.fraction)]
            for neuron, (token, high, mean, active) in enumerate(zip(tokens, *numbers, strict=True)):
                rows.append((at, neuron, high, self._label(token), mean, active))
        return Table("neurons", ("layer", "neuron", "highest", "token", "mean", "active"), tuple(rows))

    def top(self, k: int = 10) -> Table:
        """The k neurons with the highest values."""
        table = self.table()
        return replace(table, rows=tuple(sorted(table.rows, key=_highest_first)[:k]))

    def to_json(self) -> dict[str, object]:
        """What was scanned, as plain data; the neurons are in `table` and `texts`."""
        layers, _, width = self.highest.values.shape
        counts = {"rows": self.rows, "tokens": self.tokens, "done": self.done, "layers": layers, "neurons": width}
        return {**counts, "settings": dict(vars(self.settings))}

    def __str__(self) -> str:
        layers, _, width = self.highest.values.shape
        return f"Neurons({layers} x {width}, over {self.tokens:,} tokens in {self.rows:,} rows)"

    __repr__ = __str__

    def _check(self, layer: int, neuron: int) -> None:
        layers, _, width = self.highest.values.shape
        if not 0 <= layer < layers or not 0 <= neuron < width:
            raise ValueError(f"the neurons are 0.0 to {layers - 1}.{width - 1} (layer.neuron), got {layer}.{neuron}")

    def _id(self, token: str | int) -> int:
        if isinstance(token, str):
            if self.tokenizer is None:
                raise ValueError(f"this scan has no tokenizer: give the id instead of {token!r}")
            return self.tokenizer.id_of(token)
        return token

    def _label(self, token: int) -> str:
        if token < 0:
            return ""
        return str(token) if self.tokenizer is None else self.tokenizer.labels([token])[0]

    def _text(self, ids: list[int]) -> str:
        ids = [each for each in ids if each >= 0]
        if self.tokenizer is None or not all(map(self.tokenizer.has_text, ids)):
            return " ".join(map(self._label, ids))
        return self.tokenizer.decode(ids, continued=True)


def _highest_first(row: tuple[object, ...]) -> float:
    return -float(row[2])  # pyright: ignore[reportArgumentType]


def _kept(settings: Scan) -> tuple[str, ...]:
    return ("highest", "lowest") if settings.lowest else ("highest",)


def _check_tensors(folder: str | os.PathLike[str], tensors: Mapping[str, Tensor], settings: Scan) -> None:
    """Refuse tensors of a scan that are not all there, or of other shapes or types than its settings ask for."""
    shape = list(tensors["sums"].shape) if "sums" in tensors else []
    L, W = shape if len(shape) == 2 else (0, 0)
    wanted: dict[str, tuple[list[int], str]] = {"sums": ([L, W], "float"), "active": ([L, W], "int64")}
    for name in _kept(settings):
        around = 3 + settings.before + settings.after
        wanted[f"{name}.values"] = ([L, settings.k, W], "float")
        wanted[f"{name}.seen"] = ([L, settings.k, W, around], "int32")
    got = {name: (list(tensor.shape), _type(tensor)) for name, tensor in tensors.items()}
    if got != wanted or not L * W:
        raise ValueError(f"{os.fspath(folder)}: expected the tensors {wanted}, got {got}")


def _type(tensor: Tensor) -> str:
    return "float" if tensor.is_floating_point() else str(tensor.dtype).removeprefix("torch.")

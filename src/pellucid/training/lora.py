"""Low-rank adapters: some matrices W of a model become W + scale * B A, and only A and B are trained (Hu et al. 2021).

A is [r, in] and B [out, r], scale = alpha / r; B starts as zeros, so that nothing changes at first. A fused matrix of
queries, keys and values has an update for each of those that its file keeps apart.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..model.checks import positive, whole
from ..model.layers import Linear
from ..model.transformer import Transformer
from ..weights.adapters import Place, Update, places

GROUPS = {"attention": ("attention", "cross"), "ffn": ("ffn",), "all": ("attention", "cross", "ffn")}


@dataclass(frozen=True)
class Lora:
    """What is adapted and how. `targets`: "attention", "ffn" or "all"; one matrix ("query", "key", "value", "out",
    "gate", "up", "down", "qkv"); or a name as the model's files have it ("q_proj"). `dropout` of what A reads, while
    training. `merge`: at the end of a run the whole model is saved too, beside the adapter."""

    r: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] | str = ("attention",)
    dropout: float = 0.0
    merge: bool = True

    def __post_init__(self) -> None:
        whole("lora.r", self.r)
        positive("lora.alpha", self.alpha)
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"lora.dropout must lie in [0, 1), got {self.dropout}")
        if not self.targets:
            raise ValueError('lora.targets must name matrices, for example ["attention"]; got none')

    @property
    def names(self) -> tuple[str, ...]:
        """The targets as a tuple."""
        return (self.targets,) if isinstance(self.targets, str) else tuple(self.targets)


class LowRank(nn.Module):
    """scale * B A, for the rows of a matrix that a place names."""

    def __init__(self, place: Place, A: Float[Tensor, "r D"], B: Float[Tensor, "rows r"], scale: float):
        super().__init__()
        self.place, self.scale = place, scale
        self.A, self.B = nn.Parameter(A), nn.Parameter(B)

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows F"]:
        return F.linear(F.linear(x, self.A), self.B) * self.scale


class Adapted(nn.Module):
    """Stands in the place of a Linear and adds low-rank updates to it; `weight` is the whole matrix, updates included.

    The matrix itself, `base`, is never written to.
    """

    def __init__(self, base: Linear, updates: Sequence[LowRank], dropout: float = 0.0):
        super().__init__()
        self.base, self.dropout = base, dropout
        self.updates = nn.ModuleList(updates)

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows F"]:
        y, parts, done = self.base(x), [], 0
        for update in self.low_rank():
            first, last = update.place.first, update.place.last
            read = F.dropout(x, self.dropout, self.training) if self.dropout else x
            parts += [y[..., done:first], y[..., first:last] + update(read)]
            done = last
        return torch.cat((*parts, y[..., done:]), -1)

    def low_rank(self) -> Iterator[LowRank]:
        """The updates, in the order of their rows."""
        return (update for update in self.updates if isinstance(update, LowRank))

    @property
    def weight(self) -> Float[Tensor, "F D"]:
        """W + scale * B A, summed in at least fp32."""
        base = self.base.weight
        whole = base.to(torch.promote_types(base.dtype, torch.float32), copy=True)
        for update in self.low_rank():
            rows = whole[update.place.first : update.place.last]
            rows += (update.B.to(whole.dtype) @ update.A.to(whole.dtype)) * update.scale
        return whole.to(base.dtype)

    @property
    def bias(self) -> Tensor | None:
        """The bias, which is not adapted."""
        return self.base.bias

    @torch.no_grad()
    def merged(self) -> Linear:
        """One plain matrix that does the same."""
        plain = Linear(0, 0, bias=False)
        plain.weight = nn.Parameter(self.weight.detach(), requires_grad=self.base.weight.requires_grad)
        plain.bias = self.base.bias
        return plain.train(self.training)


class Adapters:
    """The updates of a transformer, and whether they stand beside its matrices or are merged into copies of them.

    Merged, the model is a plain one, which runs as fast as ever and can be saved; unmerged again it has its own
    matrices, to the last bit. Both ways `attention.W_Q` and the like are the matrices with their updates.
    """

    def __init__(self, transformer: Transformer, adapted: dict[str, Adapted]):
        self.transformer, self.adapted, self.is_merged = transformer, adapted, False
        _place(transformer, adapted)

    def merge(self) -> None:
        """Put plain matrices, updates included, into the model."""
        if not self.is_merged:
            _place(self.transformer, {name: each.merged() for name, each in self.adapted.items()})
            self.is_merged = True

    def unmerge(self) -> None:
        """Put the matrices and their updates side by side again."""
        if self.is_merged:
            _place(self.transformer, self.adapted)
            self.is_merged = False

    def remove(self) -> None:
        """Give the model its own matrices back, as they were."""
        _place(self.transformer, {name: each.base for name, each in self.adapted.items()})

    @contextmanager
    def merged(self) -> Iterator[None]:
        """Merged inside, and as before afterwards."""
        before = self.is_merged
        self.merge()
        try:
            yield
        finally:
            if not before:
                self.unmerge()

    def updates(self) -> list[Update]:
        """The updates as they are saved."""
        return [
            Update(low.place, low.A.detach(), low.B.detach(), low.scale)
            for each in self.adapted.values()
            for low in each.low_rank()
        ]


def adapt(transformer: Transformer, lora: Lora = Lora()) -> Adapters:
    """Add fresh adapters to a model and freeze all else: A from torch's generator, uniform in +- 1 / sqrt(in), B zeros.

    Raises ValueError for targets that the model does not have.
    """
    transformer.requires_grad_(False)
    drawn = []
    for place in chosen(places(transformer.config), lora.names):
        base = transformer.get_submodule(place.ours).weight
        assert isinstance(base, Tensor)
        A = torch.empty(lora.r, place.width, dtype=base.dtype).uniform_(-1, 1) * place.width**-0.5
        B = torch.zeros(place.last - place.first, lora.r, dtype=base.dtype)
        drawn.append(Update(place, A, B, lora.alpha / lora.r))
    return attach(transformer, drawn, lora.dropout)


def attach(transformer: Transformer, updates: Iterable[Update], dropout: float = 0.0) -> Adapters:
    """Put updates beside the matrices of a model. Raises ValueError for a model that is adapted already."""
    by_matrix: dict[str, list[LowRank]] = {}
    for update in sorted(updates, key=lambda update: update.place.first):
        base = transformer.get_submodule(update.place.ours)
        if not isinstance(base, Linear):
            raise ValueError(f"{update.place.ours} is adapted already: merge or remove that adapter first")
        A, B = (own.to(base.weight, copy=True) for own in (update.A, update.B))
        by_matrix.setdefault(update.place.ours, []).append(LowRank(update.place, A, B, update.scale))
    adapted = {}
    for name, parts in by_matrix.items():
        base = transformer.get_submodule(name)
        assert isinstance(base, Linear)
        adapted[name] = Adapted(base, parts, dropout).train(transformer.training)
    return Adapters(transformer, adapted)


def adapters_of(transformer: Transformer) -> Adapters | None:
    """The adapters that stand in a model, unmerged; None where there are none."""
    adapted = {name: module for name, module in transformer.named_modules() if isinstance(module, Adapted)}
    return Adapters(transformer, adapted) if adapted else None


def chosen(every: Sequence[Place], targets: Sequence[str]) -> list[Place]:
    """The places that targets name, in the model's order. Raises ValueError for one that none has, with the nearest."""
    names = {place.theirs: _names(place) for place in every}
    known = sorted({name for each in names.values() for name in each})
    for target in targets:
        if target not in known:
            near = get_close_matches(target, known, 1) or known
            raise ValueError(f"lora.targets: this model has no matrix {target!r}, but {', '.join(near)}")
    return [place for place in every if names[place.theirs].intersection(targets)]


def _names(place: Place) -> set[str]:
    """What a matrix may be called."""
    sublayer, matrix = place.ours.split(".")[-2:]
    groups = {group for group, sublayers in GROUPS.items() if sublayer in sublayers}
    return {*groups, matrix, place.theirs.rpartition(".")[2], *((place.part,) if place.part else ())}


def _place(transformer: Transformer, modules: dict[str, Linear] | dict[str, Adapted]) -> None:
    for name, module in modules.items():
        parent, _, own = name.rpartition(".")
        setattr(transformer.get_submodule(parent), own, module)

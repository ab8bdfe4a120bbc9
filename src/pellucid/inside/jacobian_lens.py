"""The Jacobian lens: each depth read through the mean derivative of the final state by the state there."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.transformer import Transformer
from .gradients import Nudge, backwards
from .lens import depths
from .lens_file import read_lens, write_lens
from .run import Run
from .trace import trace
from .tuned_lens import check_shape

AT_ONCE = 64  # derivatives that are taken in one pass back


@dataclass(frozen=True, eq=False, repr=False)
class JacobianLens:
    """norm_f(J_l x_l) W_U with J_l = E[d x_final / d x_l] (Gurnee et al. 2026), of the same token of both states."""

    J: Float[Tensor, "L D D"]

    @property
    def name(self) -> str:
        """What tables call it."""
        return "Jacobian lens"

    def check(self, layers: int, width: int) -> None:
        """Raise ValueError where the lens is not for a model of this many layers and this width."""
        check_shape(self.name, tuple(self.J.shape[:2]), layers, width)

    def __call__(self, depth: int, state: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        """What the state at a depth is read as; the last is left as it is."""
        return state if depth == len(self.J) else state @ self.J[depth].to(state).T

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the lens into a safetensors file."""
        write_lens(path, self.name, {"J": self.J})

    @classmethod
    def load(cls, path: str | os.PathLike[str], transformer: Transformer) -> Self:
        """Read a lens for a model. Raises ValueError for another file, or one of a model of another shape."""
        layers, width = len(transformer.blocks), transformer.config.d_model
        return cls(**read_lens(path, "Jacobian lens", {"J": (layers, width, width)}))

    def __repr__(self) -> str:
        return f"JacobianLens({self.J.shape[0]} layers, width {self.J.shape[1]})"


def jacobian_lens(
    transformer: Transformer,
    texts: Iterable[Tensor],
    position: int = -1,
    progress: Callable[[int], object] | None = None,
) -> JacobianLens:
    """The mean over texts (ids, 1-D) of d x_final / d x_l at one position of each (-1: its last token).

    For each text as many derivatives are taken as the model is wide, some in a pass back: a text of T tokens costs what
    training on D / 3 of its kind would. `progress` is told how many texts are done. Raises ValueError for no texts, and
    for a model that needs more than ids.
    """
    if transformer.encoder is not None:
        raise ValueError("this model has an encoder: a lens needs states that are made of ids alone")
    total, done = None, 0
    for ids in texts:
        if not isinstance(ids, Tensor) or ids.ndim != 1:
            got = f"shape {list(ids.shape)}" if isinstance(ids, Tensor) else f"a {type(ids).__name__}"
            raise ValueError(f"each text is a tensor of ids with one axis, got {got}")
        found = _jacobian(trace(transformer, ids[None].to(transformer.W_U.device)), position)
        total, done = found if total is None else total + found, done + 1
        if progress is not None:
            progress(done)
    if total is None:
        raise ValueError("there are no texts to take a lens of")
    return JacobianLens((total / done).to(torch.promote_types(transformer.W_U.dtype, torch.float32)))


@dataclass(frozen=True, eq=False)
class _Part:
    """One feature of the last state at a column, another one in each row."""

    first: int
    column: int

    def __call__(self, run: Run, state: Float[Tensor, "B T D"], nudge: Nudge | None = None) -> Tensor:
        return state[:, self.column, self.first : self.first + len(state)].diagonal().sum()


def _jacobian(run: Run, position: int) -> Float[Tensor, "L D D"]:
    """The derivatives of one text, in float64."""
    column, width = run.column(0, position), run.transformer.config.d_model
    rows = []
    for first in range(0, width, AT_ONCE):
        many = min(AT_ONCE, width - first)
        whole = run.recording
        types = None if whole.types is None else whole.types.expand(many, -1)
        states = tuple(state.expand(many, -1, -1) for state in whole.states)
        wide = replace(run, recording=replace(whole, ids=whole.ids.expand(many, -1), types=types, states=states))
        with torch.enable_grad(), run.precision.restored():
            found = backwards(wide, _Part(first, column)).states
        rows.append(torch.stack([found[index][:, column].double() for index in depths(run.transformer)[:-1]]))
    return torch.cat(rows, 1)

"""The stages of a forward pass at one token, each small enough to be shown on a line."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.sites import Site
from .reading import all_sites
from .run import Run


@dataclass(frozen=True)
class Stage:
    """A site, its shape in the trace, and its value at one token with the Euclidean norm of that.

    `values` are flat: heads after one another; -inf where the mask hides a key, which the norm leaves out. Sites of an
    encoder, and of the text that is attended to, are shown whole in the decoder's trace, where the token is one of the
    decoder's.
    """

    site: Site
    shape: tuple[int, ...]
    norm: float
    values: Float[Tensor, "numbers"]


def stages(trace: Run, names: Iterable[str], row: int = 0, position: int = -1) -> list[Stage]:
    """The named sites of a trace, in the order the data flows. `position` counts the row's tokens, -1 the last.

    Raises SiteError for a name that is no site, ValueError for a position that the row does not have.
    """
    column = trace.column(row, position)
    values = trace.several(names)
    known = [site for site in all_sites(trace.transformer) if site.name in values]
    return [_stage(site, values[site.name], row, column, trace.transformer.prefix) for site in known]


def _stage(site: Site, value: Tensor, row: int, column: int, prefix: str) -> Stage:
    at = value[row]
    if "T" in site.axes and site.name.startswith(prefix):
        at = at.select(site.axes.index("T") - 1, column)
    at = at.flatten()
    norm = torch.linalg.vector_norm(at[at.isfinite()].double())
    return Stage(site, tuple(value.shape), float(norm), at)

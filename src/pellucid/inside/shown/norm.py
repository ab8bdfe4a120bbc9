"""Every norm of a model, and what it does to one token's vector, step by step."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...model.config import LayerNorm
from ...model.layers import Norm
from ...model.transformer import Transformer
from ...views.packed import Packed
from ...views.packing import pack
from ..asking import ask
from ..errors import SiteError
from ..names import check_name
from ..reading import Point, all_sites, group_of, state_sites
from ..run import Run


@dataclass(frozen=True)
class NormSite:
    """A norm by its name, the site that a page asks for: what it reads, its scale, and what it gives.

    `gives` are sites: both parts' inputs where a parallel block has one norm. `says` is where it stands, in words.
    """

    site: str
    says: str
    reads: str
    scale: str
    gives: tuple[str, ...]
    norm: Norm
    layer: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The norm as plain data, with its kind and its eps."""
        record = self.norm.record
        plain = {name: value for name, value in vars(self).items() if name != "norm"}
        kind = {"kind": type(record).__name__, "eps": record.eps, "shift": self.norm.bias is not None}
        return {**plain, "gives": list(self.gives), **kind}


def norms(run: Run) -> dict[str, Any]:
    """The norms of the model in the order in which the data meets them, each with the sites it stands between."""
    return {"norms": [each.to_json() for each in norm_sites(run.transformer)]}


def norm(run: Run, site: str, position: int = -1) -> Packed:
    """A norm at one token: the vector, centred, divided, times the gain, plus the shift, and what the run has there.

    `scale` is what the vector was divided by (as a factor); `own_scale` is the norm's own, which an edit can have
    replaced. `remainder` is how far the computed result is from the run's: rounding, or an edit. Steps are computed in
    float64 and shown in 32 bits. Raises SiteError for a site that is no norm's.
    """
    found = norm_site(run.transformer, site)
    groups = {group_of(run.transformer, name) for name in (found.reads, found.scale, *found.gives)}
    return ask(run, lambda point: _steps(run, found, site, point), 0, position, groups - {""})


def norm_sites(transformer: Transformer) -> list[NormSite]:
    """All norms of a stack, an encoder that it reads not among them."""
    return list(_norm_sites(transformer))


def norm_site(transformer: Transformer, site: str) -> NormSite:
    """The norm of this name; of a norm that gives two sites, either. Raises SiteError where there is none."""
    found = norm_sites(transformer)
    known = {name: each for each in found for name in (each.site, *each.gives)}
    if site not in known:
        check_name(site, [each.name for each in all_sites(transformer)])
        names = ", ".join(dict.fromkeys(each.site for each in found)) or "none in this model"
        raise SiteError(f"{site} is no norm's; norms are asked for by {names}")
    return known[site]


def _norm_sites(transformer: Transformer) -> Iterator[NormSite]:
    prefix, embed = transformer.prefix, transformer.embed
    states, steps = state_sites(transformer), transformer.steps
    if embed.norm is not None:
        name = f"{embed.name}.sum"
        yield NormSite(name, "after the embedding", name, f"{name}.scale", (states[0],), embed.norm)
    for step, (state, entered) in zip(steps, pairwise(states), strict=True):
        layer = step.parts[0].layer
        if step.shared is not None:
            gives = tuple(f"{part.name}.input" for part in step.parts)
            says = f"layer {layer}: before attention and FFN"
            yield NormSite(gives[0], says, state, state.replace("stream", "norm.scale"), gives, step.shared, layer)
        for part in step.parts:
            if part.reads_normed and part.norm is not None:
                name, says = f"{part.name}.input", f"layer {layer}: before {_says(part.name)}"
                yield NormSite(name, says, state, f"{name}.scale", (name,), part.norm, layer)
        if step.after is not None:
            name = f"{step.parts[0].name}.sum"
            says = f"layer {layer}: after {_says(step.parts[0].name)}"
            yield NormSite(name, says, name, f"{name}.scale", (entered,), step.after, layer)
    if transformer.final_norm is not None:
        name = f"{prefix}final.normed"
        yield NormSite(name, "final", states[-1], f"{prefix}final.scale", (name,), transformer.final_norm)
    if transformer.head is not None:
        name, head = f"{transformer.head.name}.normed", transformer.head
        yield NormSite(name, "in the prediction head", f"{head.name}.active", f"{head.name}.scale", (name,), head.norm)


def _says(part: str) -> str:
    return {"attention": "attention", "cross": "cross-attention", "ffn": "FFN"}[part.rpartition(".")[2]]


def _steps(run: Run, found: NormSite, site: str, point: Point) -> Packed:
    x, scale = point.read(found.reads).double(), point.read(found.scale).double()
    given = point.read(site if site in found.gives else found.gives[0]).double()
    layer, record = found.norm, found.norm.record
    mean = x.mean() if isinstance(record, LayerNorm) else torch.zeros_like(x[0])
    centred = x - mean
    variance = centred.square().mean()
    divided = centred * scale
    gained = divided * layer.weight.double()
    result = gained if layer.bias is None else gained + layer.bias.double()
    steps = {"x": x, "centred": centred, "divided": divided, "gained": gained, "result": result, "given": given}
    weights = {"gain": layer.weight, "shift": layer.bias}
    meta = {
        **found.to_json(),
        "position": run.columns().index(point.position),
        "mean": float(mean),
        "variance": float(variance),
        "scale": float(scale),
        "own_scale": float(torch.rsqrt(variance + record.eps)),
        "norms": {name: float(value.norm()) for name, value in steps.items()},
        "remainder": float((result - given).abs().max()),
        "edited": sorted({found.reads, found.scale, *found.gives} & point.edited),
    }
    shown = {**steps, **{name: value for name, value in weights.items() if value is not None}}
    return Packed(meta, tuple(pack(name, _numbers(value), "float32") for name, value in shown.items()))


def _numbers(value: Float[Tensor, "D"]) -> np.ndarray:
    return value.detach().double().cpu().numpy()

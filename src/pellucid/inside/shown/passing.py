"""The whole pass, stage by stage, with the numbers of one token."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...model.config import Bidirectional
from ...model.place import visible
from ...model.sites import Site
from ..asking import ask
from ..lens import top
from ..reading import Point, all_sites
from ..run import Run
from ..stages import Stage, stages
from .passing_words import mask_said, said
from .tiles import axes_at, is_logits, numpy

MOST_VALUES = 4096  # of one stage, as numbers in JSON


def pass_stages(run: Run, layer: int = -1, position: int = -1, most: int = 64, side: str = "") -> dict[str, Any]:
    """All stages of one layer at one token, in the order the data flows.

    `layer` -1 is the embedding, the number of layers what comes after them. Each stage has at most `most` values, of
    `of`, but a mask has all; null is -inf, where it hides a key. Logits are those of the most probable tokens. `side`
    "encoder" goes through the encoder, at a position of the source. Raises ValueError for a layer, a position or a side
    that there is not.
    """
    if side not in ("", "encoder") or (side and run.source is None):
        sides = "the model itself (side='')" + (" or its encoder" if run.source else "; this model has no encoder")
        raise ValueError(f"stages are shown of {sides}, got side={side!r}")
    if not 1 <= most <= MOST_VALUES:
        raise ValueError(f"most must lie in 1..{MOST_VALUES} (values of one stage), got {most}")
    run = run.source if side and run.source is not None else run
    layers, column = run.transformer.config.n_layers, run.column(0, position)
    if not -1 <= layer <= layers:
        raise ValueError(f"layer must lie in -1 (the embedding)..{layers} (the ending), got {layer}")
    here = [site for site in all_sites(run.transformer) if _layer(run, site) == layer]
    at = run.columns(0).index(column)
    shown = []
    for stage in stages(run, [site.name for site in here if not is_logits(site)], position=at):
        shown.append(_entry(run, stage, most))
        if stage.site.name.endswith(".scores"):
            shown.append(_mask(run, stage, column))
    if any(map(is_logits, here)):
        after = [site.name for site in here].index(next(site.name for site in here if is_logits(site)))
        shown.insert(after, _logits(run, at, most))
    return {
        "layer": layer,
        "layers": layers,
        "side": side,
        "position": at,
        "token": run.tokens()[at],
        "stages": shown,
    }


def _layer(run: Run, site: Site) -> int | None:
    """The layer that a site is shown with; None where it is one of the other side of an encoder-decoder."""
    prefix, last = run.transformer.prefix, run.transformer.config.n_layers
    if not site.name.startswith(prefix):
        return None if site.name.startswith("encoder.") else last
    if site.name.removeprefix(prefix).startswith("embed."):
        return -1
    return last if site.layer is None else site.layer


def _entry(run: Run, stage: Stage, most: int) -> dict[str, Any]:
    site, prefix = stage.site, run.transformer.prefix
    name, what = said(run.transformer.config, site.name.removeprefix(prefix))
    axes = axes_at(site)
    sizes = dict(zip(site.axes, stage.shape, strict=True))
    return {
        "site": site.name,
        "name": name,
        "symbol": site.symbol,
        "formula": site.formula,
        "axes": axes,
        "at": [sizes[axis] for axis in axes],
        "shape": list(stage.shape),
        "norm": stage.norm,
        "values": _numbers(stage.values[:most]),
        "of": stage.values.numel(),
        "what": what,
    }


def _mask(run: Run, scores: Stage, column: int) -> dict[str, Any]:
    """The mask of a layer at one token, which stands between its scores and its pattern."""
    layer, cross = scores.site.layer or 0, ".cross." in scores.site.name
    keys = run.source.place if cross and run.source is not None else run.place
    mask = Bidirectional() if cross else run.transformer.config.mask(layer)
    seen = visible(mask, run.place, keys)[0, column]
    formula, what = mask_said(mask, cross)
    values = torch.zeros(seen.shape).masked_fill(~seen.cpu(), -torch.inf)
    return {
        "site": scores.site.name.replace(".scores", ".mask"),
        "name": "Mask",
        "symbol": "mask",
        "formula": formula,
        "axes": ["S"],
        "at": list(seen.shape),
        "shape": [scores.shape[-2], scores.shape[-1]],
        "norm": 0.0,
        "values": _numbers(values),
        "of": seen.numel(),
        "what": what,
    }


def _logits(run: Run, position: int, most: int) -> dict[str, Any]:
    """The logits of the most probable tokens, with their ids, labels and probabilities."""

    def greatest(point: Point) -> dict[str, Any]:
        table = top(point, min(most, point.logits.numel()))
        site = next(site for site in all_sites(run.transformer) if is_logits(site))
        whole = (1, run.ids.shape[1], point.logits.numel())
        ids = list(table.column("id"))
        entry = _entry(run, Stage(site, whole, float(point.logits.double().norm()), point.logits[ids]), most)
        extra = {"ids": ids, "labels": list(table.column("token")), "probabilities": list(table.column("probability"))}
        return {**entry, "of": whole[-1], **extra}

    return ask(run, greatest, 0, position, ["final"])


def _numbers(values: Float[Tensor, "numbers"]) -> list[float | None]:
    """The shortest decimals that are these numbers in their own precision (at least fp32); None for -inf."""
    found = [float(str(number)) for number in numpy(values)]
    return [number if abs(number) < float("inf") else None for number in found]

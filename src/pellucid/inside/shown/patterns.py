"""Where every head attends, as few bytes: exactly, or with many tokens pooled so that all heads are drawn at once.

Axes: L layers, H query heads, T the queries' tokens, S the keys' tokens.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ...views.packed import Array, Packed
from ...views.packing import pack
from ..run import Run

PARTS = ("attention", "cross")
MOST_BYTES = 1 << 22  # of one answer
AT_ONCE = 1 << 18  # of one of the answers that make up the picture of all heads
MOST_EXACT = 5 << 19  # of all heads together: above this they are pooled for that picture
POOLED = 64


def patterns(
    run: Run, layer: int = 0, last: int = -1, part: str = "attention", size: int = 0, head: int = -1
) -> Packed:
    """The patterns of the layers `layer` to `last` (-1: that layer alone): an array a layer, named by its number, 8
    bits, heads x queries x keys; a triangle where no query sees a later key.

    `size` 0 is exact; else queries and keys are taken several together, so that there are at most `size` of each, and
    of every such group the largest is kept. `step` in the meta says how many (queries, keys) are one. `head` chooses
    one head, -1 all of them. Raises ValueError for more than MOST_BYTES.
    """
    last = layer if last == -1 else last
    config = run.transformer.config
    check_part(run, part)
    within("layer", layer, config.n_layers)
    if not layer <= last < config.n_layers:
        raise ValueError(f"last must lie in {layer}..{config.n_layers - 1} (or be -1 for one layer), got {last}")
    if head != -1:
        within("head", head, config.n_heads, " (or -1 for all)")
    if size < 0:
        raise ValueError(f"size must be 0 (exact) or the most queries and keys of a picture, got {size}")
    step = _step(run, part, size)
    heads = config.n_heads if head == -1 else 1
    if (needed := (last - layer + 1) * heads * _cells(run, part, step)) > MOST_BYTES:
        raise ValueError(
            f"at most {MOST_BYTES:,} bytes are sent at once, got {needed:,}: ask for fewer layers, one head, or a "
            f"smaller size than {size or 'exact (0)'}"
        )
    chosen = slice(None) if head == -1 else slice(head, head + 1)
    arrays = tuple(_layer(run, name, part, step, chosen) for name in range(layer, last + 1))
    meta = {"part": part, "layers": list(range(layer, last + 1)), "step": list(step), "head": head, "size": size}
    return Packed(meta, (*arrays,))


def pattern_plan(run: Run, part: str = "attention") -> dict[str, Any]:
    """How to ask for all heads at once: in `size`, and layers from `first` to `last` in each of the `requests`.

    `large` is the size in which one head is shown large: 0, exact, unless that alone were more than can be sent.
    `steps` are how many queries and keys are one in the picture of all heads.
    """
    check_part(run, part)
    config, exact = run.transformer.config, _cells(run, part, (1, 1))
    size = 0 if config.n_layers * config.n_heads * exact <= MOST_EXACT else POOLED
    step = _step(run, part, size)
    at_once = max(1, AT_ONCE // (config.n_heads * _cells(run, part, step)))
    firsts = range(0, config.n_layers, at_once)
    queries, keys = _lengths(run, part)
    return {
        "part": part,
        "size": size,
        "large": 0 if exact <= MOST_BYTES else int(MOST_BYTES**0.5),
        "requests": [[first, min(first + at_once, config.n_layers) - 1] for first in firsts],
        "steps": list(step),
        "layers": config.n_layers,
        "heads": config.n_heads,
        "queries": queries,
        "keys": keys,
    }


def check_part(run: Run, part: str) -> None:
    """Refuse an attention that the model does not have."""
    known = PARTS if run.source is not None else PARTS[:1]
    if part not in known:
        raise ValueError(f"part must be {' or '.join(map(repr, known))} in this model, got {part!r}")


def within(name: str, value: int, size: int, also: str = "") -> None:
    """Refuse a number that is not one of `size`."""
    if not 0 <= value < size:
        raise ValueError(f"{name} must lie in 0..{size - 1}{also}, got {value}")


def _layer(run: Run, layer: int, part: str, step: tuple[int, int], heads: slice) -> Array:
    site = f"{run.transformer.prefix}{layer}.{part}.pattern"
    with torch.no_grad():
        exact = run.by_position(site).movedim(0, 1)[heads].float()
    values = pooled(exact, step)
    # An edit may have put anything there.
    triangle = _square(run, part) and not bool(values.triu(1).any())
    unit = float(values.min()) >= 0.0 and float(values.max()) <= 1.0
    return pack(str(layer), values.cpu().numpy(), "uint8", triangle, (0.0, 1.0) if unit else None)


def pooled(values: Float[Tensor, "H T S"], step: Sequence[int]) -> Float[Tensor, "H rows columns"]:
    """The largest of each group of `step` queries and keys; the last groups may be smaller."""
    if tuple(step) == (1, 1):
        return values
    return F.max_pool2d(values[None], (step[0], step[1]), ceil_mode=True)[0]


def _lengths(run: Run, part: str) -> tuple[int, int]:
    """How many queries and keys there are."""
    queries = len(run.columns(0))
    return queries, len(run.source.columns(0)) if part == "cross" and run.source is not None else queries


def _step(run: Run, part: str, size: int) -> tuple[int, int]:
    """How many queries and keys are one: the least that leaves at most `size` of each."""
    queries, keys = _lengths(run, part)
    return (-(-queries // size), -(-keys // size)) if size else (1, 1)


def _cells(run: Run, part: str, step: tuple[int, int]) -> int:
    """The numbers of one head's picture."""
    queries, keys = (-(-length // each) for length, each in zip(_lengths(run, part), step, strict=True))
    return queries * (queries + 1) // 2 if _square(run, part) else queries * keys


def _square(run: Run, part: str) -> bool:
    """Whether no query of the model sees a later key."""
    return part == "attention" and run.transformer.config.causal

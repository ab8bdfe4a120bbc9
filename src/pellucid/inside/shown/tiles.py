"""Any value of a run as packed numbers: at one token, or for a range of tokens."""

from math import prod
from typing import Any

import torch
from torch import Tensor

from ...model.sites import Site
from ...views.packed import Kind, Packed
from ...views.packing import pack
from ..names import check_name
from ..reading import all_sites
from ..run import Run

MOST_NUMBERS = 2_000_000  # of one packed answer
KINDS: tuple[Kind, ...] = ("uint8", "float16", "float32")


def values_at(run: Run, site: str = "", position: int = -1, first: int = 0, most: int = 32_768) -> Packed:
    """The values of one site at one token from number `first` on, heads after one another: array `values`, float32.

    The meta has the axes and the shape of the whole at the token, and how many numbers it is (`of`). -inf where a mask
    hides a key.
    """
    found = _found(run, site)
    if not 1 <= most <= MOST_NUMBERS:
        raise ValueError(f"most must lie in 1..{MOST_NUMBERS:,} numbers, got {most:,}")
    owner = _owner(run, found)
    values = _read(owner, found, [owner.column(0, position)])
    axes = axes_at(found)
    shape = [size for axis, size in zip(found.axes[1:], values.shape, strict=True) if axis != "T"]
    flat = values.flatten()
    if not 0 <= first < flat.numel():
        raise ValueError(f"first must lie in 0..{flat.numel() - 1} ({site} has as many numbers), got {first}")
    meta = {"site": found.name, "axes": axes, "shape": shape, "of": flat.numel(), "first": first}
    return Packed(meta, (pack("values", numpy(flat[first : first + most]), "float32"),))


def site_tile(
    run: Run, site: str = "", kind: str = "float16", first: int = 0, last: int = -1, head: int = -1
) -> Packed:
    """Any site's value at the tokens `first` to `last` (that one included; -1 is the last token): array `values`.

    `head` chooses one along H or G, -1 all of them. Raises ValueError for more than two million numbers, for a head
    that there is not, and for a kind that cannot say the numbers (8 bits have no -inf).
    """
    found = _found(run, site)
    packing: Kind | None = next((each for each in KINDS if each == kind), None)
    if packing is None:
        raise ValueError(f"kind must be {', '.join(KINDS)}, got {kind!r}")
    owner = _owner(run, found)
    start, stop = owner.columns(0).index(owner.column(0, first)), owner.columns(0).index(owner.column(0, last))
    if start > stop:
        raise ValueError(f"first must not come after last, got first={first} and last={last}")
    columns, axes = owner.columns(0)[start : stop + 1], list(found.axes[1:])
    _check_size(run, owner, found, len(columns), head)
    value = _read(owner, found, columns)
    if head >= 0:
        along = _head_axis(found)
        value = value.select(axes.index(along), head)
        axes.remove(along)
    meta = {"site": found.name, "axes": axes, "first": start, "last": stop}
    return Packed(meta, (pack("values", numpy(value), packing),))


def _check_size(run: Run, owner: Run, site: Site, tokens: int, head: int) -> None:
    """Refuse too many numbers before any is computed."""
    config = run.transformer.config
    source = None if run.source is None else run.source.ids.shape[1]
    sizes = dict(zip(site.axes, site.shape(config, owner.ids.shape[1], source=source), strict=True))
    if "T" in sizes:
        sizes["T"] = tokens
    if head != -1:
        along = _head_axis(site)
        if not 0 <= head < sizes[along]:
            raise ValueError(f"{site.name} has heads 0..{sizes[along] - 1} (or -1 for all), got head={head}")
        sizes[along] = 1
    if (count := prod(sizes.values())) > MOST_NUMBERS:
        fewer = "fewer tokens (first, last)" + ("" if head >= 0 or not {"H", "G"} & set(sizes) else " or one head")
        raise ValueError(f"at most {MOST_NUMBERS:,} numbers are sent at once, got {count:,}: ask for {fewer}")


def _head_axis(site: Site) -> str:
    for axis in ("H", "G"):
        if axis in site.axes:
            return axis
    raise ValueError(f"{site.name} has no heads (its axes are {' '.join(site.axes)}): leave head out")


def _found(run: Run, name: str) -> Site:
    name = check_name(name, run.names)
    return next(site for site in all_sites(run.transformer) if site.name == name)


def _owner(run: Run, site: Site) -> Run:
    """The run that a site is a value of: the encoder's own, or the decoder's."""
    return run.source if run.source is not None and site.name.startswith("encoder.") else run


def is_logits(site: Site) -> bool:
    """Whether a site has a number for every token of the vocabulary."""
    return site.axes[-1] == "V"


def axes_at(site: Site) -> list[str]:
    """The axes of a site's value at one token."""
    return [axis for axis in site.axes if axis not in ("B", "T")]


def numpy(values: Tensor) -> Any:
    """The numbers in their own precision, at least fp32."""
    return values.detach().to(torch.promote_types(values.dtype, torch.float32)).cpu().numpy()


def _read(owner: Run, site: Site, columns: list[int]) -> Tensor:
    """A site in the first row, its tokens those at `columns`."""
    with torch.no_grad():
        if is_logits(site):
            return owner.logits_at(0, columns)
        value = owner[site.name][0]
    if "T" not in site.axes:
        return value
    return value.index_select(site.axes.index("T") - 1, torch.tensor(columns, device=value.device))

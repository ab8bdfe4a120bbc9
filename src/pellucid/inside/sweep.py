"""Sweeps: one run edited with another's values, one place at a time, and what each edit does to a metric."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.sites import Site
from .edits import Edit, patch
from .effects import Effects
from .errors import SiteError
from .metrics import Metric, check_metric
from .names import select
from .reading import all_sites
from .run import Run
from .sweep_folder import about, described
from .sweep_jobs import Base, unpadded
from .sweep_work import Cell, SweepOptions, work

EACH = ("position", "head", "head,position", "site")
DEFAULTS = SweepOptions()


def sweep(
    base: Run,
    source: Run,
    sites: str = "*.stream",
    *,
    metric: Metric,
    each: str | None = None,
    options: SweepOptions = DEFAULTS,
) -> Effects:
    """Activation patching (Vig et al. 2020, Meng et al. 2022): `base` is run with values of `source`, place by place.

    `sites` is a pattern. A place is `each` "position" of a site (usual where there are no heads), each "head" at all
    positions (usual where there are), each "head,position", or the whole "site". The effect of an edit is
    (m(edited) - m(base)) / (m(source) - m(base)): 0 where it does nothing, 1 where it makes the metric the source's.
    With the corrupted text as base that is denoising, with the clean one noising. Both texts must have as many tokens.

    Every run starts where its edit does and shares what it can with the others; the results are those of
    `base.edit(patch(...))` up to rounding. Raises ValueError for texts that do not align, for a metric that is the same
    in both runs (its values: `normalised=False`), and for a folder that holds another sweep.
    """
    check_metric(metric, base, source)
    over = Base.of(base, options.row, metric)
    other = unpadded(source, options.source_row)
    ends = over.value(), float(metric.of(other)[0])
    if options.normalised and ends[0] == ends[1]:
        raise ValueError(
            f"the {metric.name} is {ends[0]:g} in both runs, so no effect can be measured by it; for the metric itself "
            "ask for normalised=False"
        )
    grid = _Grid.of(over.run, other, sites, each)
    cells = [cell for site in grid.sites for cell in _cells(over, other, site, grid.each)]
    question = ["sweep", sites, grid.each, *about(other)]
    values = work(over, cells, options, question)
    if options.normalised:
        values = (values - ends[0]) / (ends[1] - ends[0])
    return grid.effects(values, f"effect on the {metric.name}" if options.normalised else metric.name, ends)


def sweep_edits(
    base: Run, edits: Sequence[Edit | Sequence[Edit]], metric: Metric, options: SweepOptions = DEFAULTS
) -> Float[Tensor, "N"]:
    """The metric of `base` (one row of it) under each of some edits, or groups of edits made together; float64.

    One run each, as `metric.of(base.edit(...))` up to rounding; those that start alike share their passes.
    """
    check_metric(metric, base)
    over = Base.of(base, options.row, metric)
    groups = [[each] if isinstance(each, Edit) else list(each) for each in edits]
    cells = [Cell(over.changes(group)) for group in groups]
    return work(over, cells, options, ["edits", [[described(edit) for edit in group] for group in groups]])


@dataclass(frozen=True)
class _Grid:
    """The rows and columns of a sweep; `heads` of each site."""

    sites: tuple[Site, ...]
    heads: tuple[int, ...]
    each: str
    tokens: tuple[str, ...]

    @classmethod
    def of(cls, base: Run, source: Run, pattern: str, each: str | None) -> "_Grid":
        """The places that are asked for. Raises SiteError or ValueError where they make no sense."""
        names = select(pattern, base.names)
        chosen = tuple(site for site in all_sites(base.transformer) if site.name in names)
        if each is None:
            each = "head" if all(map(_axis, chosen)) else "position"
        if each not in EACH:
            raise ValueError(f"a sweep goes over each {', '.join(map(repr, EACH))}, got {each!r}")
        if headless := [site.name for site in chosen if "head" in each and not _axis(site)]:
            raise SiteError(f"{headless[0]} has no heads: sweep over each 'position' or each 'site'")
        sides = {base.source is not None and name.startswith("encoder.") for name in names}
        if len(sides) > 1:
            raise SiteError(
                f"{pattern!r} names sites of the encoder and of the decoder, whose texts differ: ask for each by "
                "itself, as 'encoder.*.stream' and 'decoder.*.stream'"
            )
        inner = sides == {True}
        mine, theirs = (run.source if inner and run.source is not None else run for run in (base, source))
        check_alignment(mine.tokens(), theirs.tokens())
        config = mine.transformer.config
        heads = tuple({"H": config.n_heads, "G": config.n_kv_heads}.get(_axis(site), 1) for site in chosen)
        return cls(chosen, heads, each, tuple(mine.tokens()))

    def effects(self, values: Float[Tensor, "N"], title: str, ends: tuple[float, float]) -> Effects:
        """The values, which come row by row, as a grid."""
        rows, name = [site.name for site in self.sites], "position"
        columns = [f"{position} {token}" for position, token in enumerate(self.tokens)]
        counts = [len(columns)] * len(rows)
        if self.each == "site":
            columns, counts, name = ["all"], [1] * len(rows), "positions"
        elif self.each == "head":
            columns, counts, name = [str(head) for head in range(max(self.heads))], list(self.heads), "head"
        elif self.each == "head,position":
            rows = [f"{row} {head}" for row, many in zip(rows, self.heads, strict=True) for head in range(many)]
            counts = [len(columns)] * len(rows)
        grid = torch.full((len(rows), len(columns)), torch.nan, dtype=torch.float64)
        for row, found in enumerate(values.split(counts)):
            grid[row, : len(found)] = found
        note = f"base {ends[0]:.4f}, source {ends[1]:.4f}"
        return Effects(title, tuple(rows), tuple(columns), grid, note, *ends, names=("site", name, "effect"))


def check_alignment(base: Sequence[str], source: Sequence[str]) -> None:
    """Raise ValueError for texts of different lengths, saying where they part and meet again."""
    if len(base) == len(source):
        return
    pairs = list(zip(base, source, strict=False))
    first = next((at for at, (one, other) in enumerate(pairs) if one != other), len(pairs))
    told = [" ".join(each[max(0, first - 1) : first + 3]) or "(its end)" for each in (base, source)]
    raise ValueError(
        f"both texts must have as many tokens, since values are matched by position; got {len(base)} and "
        f"{len(source)}, which first differ at position {first}: {told[0]!r} and {told[1]!r}"
    )


def _axis(site: Site) -> str:
    """The axis of heads that a site has, H or G; "" without one."""
    return next((axis for axis in ("H", "G") if axis in site.axes), "")


def _cells(base: Base, source: Run, site: Site, each: str) -> Iterator[Cell]:
    """The edits of one site, in the order of the grid, and where they make a difference."""
    (whole,) = base.changes([patch(site.name, source)])
    assert whole.edit.value is not None, "a patch has one"
    mine = base.run.by_position(site.name)
    differs = mine != whole.edit.value.to(mine)
    axis = _axis(site) if "head" in each else ""
    if axis:
        differs = differs.movedim(1 + [name for name in site.axes if name not in ("B", "T")].index(axis), 1)
    else:
        differs = differs[:, None]
    touched = differs.flatten(2).any(2) if differs.ndim > 2 else differs
    every = tuple(range(len(touched)))
    for head in range(touched.shape[1]):
        columns = touched[:, head].nonzero().flatten().tolist()
        narrow = {"H": {"heads": (head,)}, "G": {"kv_heads": (head,)}}.get(axis, {})
        edit = replace(whole.edit, **narrow)
        if "position" not in each:
            yield Cell((replace(whole, edit=edit),), every, tuple(columns))
            continue
        for position in every:
            only = replace(edit, value=whole.edit.value[position : position + 1], at=(position,))
            yield Cell((replace(whole, edit=only),), (position,), (position,) if position in columns else ())

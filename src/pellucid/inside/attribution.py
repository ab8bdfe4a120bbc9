"""Attribution patching: what patching each value would do, by gradients instead of by a run each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.sites import Site
from ..views.table import Table, plain
from .edits import Edit
from .effects import Effects
from .errors import SiteError
from .gradients import Gradients, gradients, layers_of
from .metrics import Metric, check_metric
from .names import select
from .reading import all_sites
from .rerun import edited
from .run import Run
from .softmax_scores import softmax_scores
from .sweep import check_alignment
from .sweep_jobs import unpadded

EACH = {"position": ("T", "S"), "head": ("H", "G"), "neuron": ("F",)}  # what a column may stand for, and its axes


@dataclass(frozen=True)
class AttributionOptions:
    """How attribution patching is done.

    `points` averages the gradient over the midpoints of k equal stretches from the base's value to the source's
    (integrated gradients, Sundararajan et al. 2017), all positions of the site moving together; 0 takes the base's.
    `softmax` recomputes the pattern for queries and keys instead of following its slope, and `dropout` takes the mean
    size of the scores with what one layer writes held, each layer in turn, so that effects that cancel are seen (both
    AtP*, Kramár et al. 2024).
    `row` and `source_row` are the rows of the two traces; `normalised=False` leaves the scores in the metric's units.
    """

    points: int = 0
    softmax: bool = False
    dropout: bool = False
    row: int = 0
    source_row: int = 0
    normalised: bool = True

    def __post_init__(self) -> None:
        if self.points < 0:
            raise ValueError(f"points must be 0 (the gradient in the base run) or more, got {self.points}")
        if self.softmax and self.points:
            raise ValueError("softmax=True recomputes patterns from the base run: leave points out")
        if self.dropout and self.points:
            raise ValueError("dropout=True takes gradients in the base run: leave points out")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Attribution(Effects):
    """Scores by site and position, head or neuron. `raw` are in the metric's units, as m_patched - m_base is."""

    raw: Float[Tensor, "R C"]
    question: "_Question"

    def check(self, k: int = 5, step: float | None = None) -> Table:
        """The k largest scores beside what they estimate, by runs: all in the metric's units.

        "slope" is (m(a + step (a_source - a)) - m(a)) / step, which is the score itself where that is a gradient in
        the base run; "patched" is m(a_source) - m(a), the effect of the patch.
        """
        rows = []
        for row, column, _ in self.top(k):
            at = self.rows.index(str(row)), self.columns.index(str(column))
            slope, patched = self.question.run(str(row), at[1], step)
            rows.append((row, column, float(self.raw[at]), slope, patched))
        return Table(self.title, (*self.names[:2], "score", "slope", "patched"), tuple(rows), self.note)

    def to_json(self) -> dict[str, object]:
        """The grid as plain data, with the scores in the metric's units."""
        return {**super().to_json(), "raw": plain(self.raw.tolist())}

    def completeness(self) -> Table:
        """Each site's scores added up, beside m(site patched whole) - m(base), which they near as `points` grow."""
        rows = []
        for name, scores in zip(self.rows, self.raw, strict=True):
            total, patched = float(scores.nansum()), self.question.run(name, None, None)[1]
            rows.append((name, total, patched, total - patched))
        return Table("completeness", ("site", "sum of scores", "patched whole", "gap"), tuple(rows), self.note)


def attribution(
    base: Run, source: Run, sites: str = "*.stream", *, metric: Metric, each: str | None = None, **options: Any
) -> Attribution:
    """Attribution patching (Nanda 2023), the estimate of what `sweep` of the same two runs finds.

    The score of a place is the sum of (a_source - a_base) . dm/da at the base, over m_source - m_base: with the
    corrupted text as base the denoising form, with the clean one the noising form. A place is `each` "position" of a
    site (usual), "head" or "neuron"; of a key, by its own position. `options` are fields of AttributionOptions:
    points=, softmax=, dropout=, row=, source_row=, normalised=. One pass back does for all sites, k of them a site with
    `points`, one for each layer with `dropout`, whose scores are sizes and have no sign.
    Raises ValueError for texts that do not align, or a metric that is the same in both runs.
    """
    check_metric(metric, base, source)
    chosen = _options(options)
    one, other = unpadded(base, chosen.row), unpadded(source, chosen.source_row)
    found = [site for name in select(sites, one.names) for site in all_sites(one.transformer) if site.name == name]
    each = each or "position"
    columns = _columns(one, found, each)
    for mine, theirs in zip(_sides(one), _sides(other), strict=True):
        check_alignment(mine.tokens(), theirs.tokens())
    question = _Question(one, other, metric, each)
    ends = question.metric_of(one), question.metric_of(other)
    if chosen.normalised and ends[0] == ends[1]:
        raise ValueError(f"the {metric.name} is {ends[0]:g} in both runs: ask for normalised=False")
    raw = question.grid(found, len(columns), chosen)
    whole = abs(ends[1] - ends[0]) if chosen.dropout else ends[1] - ends[0]
    values = raw / whole if chosen.normalised else raw
    note = f"base {ends[0]:.4f}, source {ends[1]:.4f}; estimates by {_how(chosen)}"
    title = f"attribution patching, {metric.name}"
    names = ("site", each, "score")
    rows = tuple(site.name for site in found)
    return Attribution(title, rows, columns, values, note, *ends, names=names, raw=raw, question=question)


@dataclass(frozen=True, eq=False)
class _Question:
    """Two rows without padding, what is measured, and what a column stands for."""

    base: Run
    source: Run
    metric: Metric
    each: str

    def metric_of(self, run: Run) -> float:
        return float(self.metric.of(run)[0].detach())

    def site(self, name: str) -> Site:
        return next(site for site in all_sites(self.base.transformer) if site.name == name)

    def change(self, name: str) -> Tensor:
        """a_source - a_base at a site; 0 where both hide a score."""
        mine, theirs = self.base[name], self.source[name]
        return torch.where(mine == theirs, 0.0, theirs - mine)

    def grid(self, sites: Sequence[Site], columns: int, options: AttributionOptions) -> Float[Tensor, "R C"]:
        """The scores of all sites in the metric's units; NaN in columns that a site does not have."""
        raw = torch.full((len(sites), columns), torch.nan, dtype=torch.float64)
        for gradient in self.gradients(options):
            for row, site in zip(raw, sites, strict=True):
                scores = self.scores(site, gradient, options).cpu()
                here = row[: len(scores)]
                here.copy_(here.nan_to_num() + scores.abs() if options.dropout else scores)
        return raw / (len(layers_of(self.base)) - 1) if options.dropout else raw

    def gradients(self, options: AttributionOptions) -> Iterator[Gradients | None]:
        """Those of the base run, once or with each layer dropped; none where they are taken on the way."""
        if not options.dropout:
            yield None if options.points else gradients(self.base, self.metric)
            return
        layers = layers_of(self.base)
        if len(layers) < 2:
            raise ValueError("dropout=True holds one layer after another: it needs two layers or more, got 1")
        for layer in layers:
            yield gradients(self.base, self.metric, dropped=layer)

    def scores(self, site: Site, gradient: Gradients | None, options: AttributionOptions) -> Float[Tensor, "C"]:
        """The score of each column at one site, in float64."""
        if gradient is None:
            shares = [(i + 0.5) / options.points for i in range(options.points)]
            runs = [edited(self.base, [self.moved(site.name, share)]) for share in shares]
            mean = torch.stack([gradients(run, self.metric)[site.name].double() for run in runs]).mean(0)
            return self.summed(site, self.change(site.name).double() * mean)
        if options.softmax and site.name.endswith((".query", ".key")):
            return self.summed(site, softmax_scores(self.base, self.source[site.name], site.name, gradient))
        return self.summed(site, self.change(site.name).double() * gradient[site.name].double())

    def summed(self, site: Site, products: Tensor) -> Float[Tensor, "C"]:
        """Products of changes and gradients, added over every axis but the columns'."""
        axis = _axis(site, self.each)
        return products.movedim(axis, 0).flatten(1).sum(1)

    def moved(self, name: str, share: float, column: int | None = None) -> Edit:
        """The edit that takes a share of the way to the source, of one column or of all."""
        site = self.site(name)
        rows = self.change(name)[0].movedim(_axis(site, "position") - 1, 0)
        there = {"position": "positions", "neuron": "neurons", "head": "kv_heads" if "G" in site.axes else "heads"}
        where: dict[str, Any] = {} if column is None else {there[self.each]: (column,)}
        return Edit("add", name, value=share * rows, at=tuple(range(len(rows))), **where)

    def run(self, name: str, column: int | None, step: float | None) -> tuple[float, float]:
        """The metric's slope towards the source, and its whole change, by runs."""
        start = self.metric_of(self.base)
        little = torch.finfo(self.base.states[0].dtype).eps ** (1 / 3) if step is None else step
        if not little > 0:
            raise ValueError(f"a slope is taken over a step above 0, got {step}")
        near, far = (edited(self.base, [self.moved(name, share, column)]) for share in (little, 1.0))
        return (self.metric_of(near) - start) / little, self.metric_of(far) - start


def _options(given: dict[str, Any]) -> AttributionOptions:
    known = {field.name for field in fields(AttributionOptions)}
    if unknown := sorted(set(given) - known):
        raise ValueError(f"attribution patching has the options {', '.join(sorted(known))}, got {', '.join(unknown)}")
    return replace(AttributionOptions(), **given)


def _how(options: AttributionOptions) -> str:
    if options.points:
        return f"gradients at {options.points} points of the way"
    how = "the base's gradient" + (", patterns recomputed for queries and keys" if options.softmax else "")
    return how + (", mean size over the layers held in turn" if options.dropout else "")


def _sides(run: Run) -> list[Run]:
    return [run] if run.source is None else [run, run.source]


def _axis(site: Site, each: str) -> int:
    """The axis of a site that the columns stand for; -1 where it has none."""
    return next((site.axes.index(axis) for axis in EACH[each] if axis in site.axes), -1)


def _columns(run: Run, sites: Sequence[Site], each: str) -> tuple[str, ...]:
    """The labels of the columns. Raises ValueError or SiteError where a site has none such."""
    if each not in EACH:
        raise ValueError(f"scores go by each {', '.join(map(repr, EACH))}, got {each!r}")
    for site in sites:
        if _axis(site, each) < 0 or "B" not in site.axes or site.name.endswith("next_sentence"):
            raise SiteError(f"{site.name} has no {each} to go by: its axes are {' '.join(site.axes)}")
    config = run.transformer.config
    if config.encoder is not None and sites[0].name.startswith("encoder."):
        config = config.encoder
    if each == "position":
        inner = [site.name.startswith("encoder.") or "T" not in site.axes for site in sites]
        if run.source is not None and len(set(inner)) > 1:
            raise SiteError("these sites are of the encoder's text and of the decoder's: ask twice")
        text = run.source if run.source is not None and inner[0] else run
        return tuple(f"{position} {token}" for position, token in enumerate(text.tokens()))
    sizes = {"H": config.n_heads, "G": config.n_kv_heads, "F": config.d_ff}
    return tuple(map(str, range(max(sizes[site.axes[_axis(site, each)]] for site in sites))))

"""The report card: every head of a model with its scores, what they would be by chance, and what kind of head it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from jaxtyping import Float
from torch import Tensor

from ..views.table import Table
from .head_scores import HeadScores, number

CHANCE = 0.01  # that any head at all passes a threshold by chance
REST = "first token"


@dataclass(frozen=True, eq=False)
class Measure:
    """A score of every head and the text that it was taken on; with a threshold if heads are named after it.

    `best` is the highest score there can be.
    """

    scores: HeadScores
    text: str
    kind: str = ""
    best: float = 1.0

    @property
    def threshold(self) -> float:
        """The least score that makes a head one of this kind.

        No head of the model would reach it if the targets were drawn at random among the keys that each query may see,
        but for a `CHANCE` over all heads: the largest null + z standard deviations of any head, z the normal quantile
        of 1 - CHANCE / heads; and it is never below 0, where a score has had its best fixed offset taken off.
        """
        scores = self.scores
        z = NormalDist().inv_cdf(1 - CHANCE / scores.score.numel())
        return max(0.0, float((scores.null + z * scores.sd).nan_to_num(0.0).max()))

    @property
    def excess(self) -> Float[Tensor, "L H"]:
        """How far each head is above the threshold, 1 at the best score, without what its control has above chance."""
        scores = self.scores
        gained = scores.score
        if scores.control is not None:
            gained = gained - (scores.control - scores.null).clamp(min=0).nan_to_num(0.0)
        return ((gained - self.threshold) / (self.best - self.threshold)).nan_to_num(-1.0)


@dataclass(frozen=True, eq=False, repr=False)
class ReportCard:
    """All measures of all heads. `kinds` names each head's kind, "" where it passes no threshold.

    A head's kind is the one whose threshold it passes by most; it counts as one that rests on the first token only if
    it passes no other, since that is what a head does when its text holds nothing for it.
    """

    measures: tuple[Measure, ...]
    kinds: tuple[tuple[str, ...], ...]
    note: str

    def scores(self, name: str, text: str | None = None) -> HeadScores:
        """One score of every head, by its name and if need be by the text that it was taken on."""
        for found in self.measures:
            if found.scores.name == name and text in (None, found.text):
                return found.scores
        known = ", ".join(dict.fromkeys(found.scores.name for found in self.measures))
        raise ValueError(f"the scores are {known}; got {name!r}" + (f" on {text!r}" if text else ""))

    def table(self) -> Table:
        """Every head with its kind and all of its scores."""
        names = tuple(f"{found.scores.name}, {found.text}" for found in self.measures)
        rows = tuple(self._row(layer, head) for layer, heads in enumerate(self.kinds) for head in range(len(heads)))
        return Table("heads", ("layer", "head", "kind", *names), rows, self.note)

    def _row(self, layer: int, head: int) -> tuple[object, ...]:
        cells = (number(found.scores.score[layer, head]) for found in self.measures)
        return layer, head, self.kinds[layer][head], *cells

    def nulls(self) -> Table:
        """Every score: what it was taken on, its cases, its null (mean over heads), its threshold, who passes it."""
        rows = []
        for found in self.measures:
            scores, cells = found.scores, (None, None)
            if found.kind:
                cells = (found.threshold, int((found.excess > 0).sum()))
            null = float(scores.null.nanmean())
            control = None if scores.control is None else float(scores.control.nanmean())
            rows.append((scores.name, found.text, int(scores.n.max()), null, control, *cells))
        columns = ("score", "text", "n", "null", "control", "threshold", "above")
        return Table("scores and their nulls", columns, tuple(rows), self.note)

    def of(self, kind: str) -> Table:
        """The heads of one kind, those furthest above its threshold first."""
        found = next((each for each in self.measures if each.kind == kind), None)
        if found is None:
            known = ", ".join(each.kind for each in self.measures if each.kind)
            raise ValueError(f"the kinds are {known}; got {kind!r}")
        order = [divmod(at, len(self.kinds[0])) for at in found.excess.flatten().argsort(descending=True).tolist()]
        return found.scores.of([(layer, head) for layer, head in order if self.kinds[layer][head] == kind])

    def to_json(self) -> dict[str, object]:
        """The card as plain data: the heads, and every score with its formula, null and threshold by head."""
        scores = [
            {"text": each.text, "threshold": each.threshold if each.kind else None, **each.scores.to_json()}
            for each in self.measures
        ]
        return {"heads": self.table().to_json(), "nulls": self.nulls().to_json(), "scores": scores}

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.nulls()}"

    __repr__ = __str__


def kinds_of(measures: Sequence[Measure]) -> tuple[tuple[str, ...], ...]:
    """The kind of every head: of the measures that heads are named after, the one that it passes by most."""
    named = [found for found in measures if found.kind]
    names = [found.kind for found in named]
    excess = torch.stack([found.excess for found in named])
    resting = torch.tensor([name == REST for name in names])[:, None, None]
    # Resting is what is left: a head that passes anything else is named after that.
    rank = torch.where(resting & (excess > 0), torch.finfo(excess.dtype).tiny, excess)
    best = rank.max(0)
    return tuple(
        tuple(names[kind] if value > 0 else "" for kind, value in zip(kinds, values, strict=True))
        for kinds, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    )

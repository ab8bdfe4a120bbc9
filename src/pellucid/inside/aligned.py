"""Rows of two traces side by side, padding left out, so that a position of one stands for the same one of the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.attention import Attention
from ..model.flow import Pass
from ..model.place import Place
from .errors import GraphError
from .graph import Graph, graph_of
from .reading import Recording, state_sites
from .run import Run


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of a trace that hold the same number of tokens, as a batch without padding."""

    run: Run
    recording: Recording
    here: Pass

    @classmethod
    def of(cls, run: Run, rows: Sequence[int]) -> Self:
        """These rows of a trace, with the edits made in it."""
        at = torch.tensor(list(rows), device=run.ids.device)[:, None]
        columns = torch.tensor([run.columns(row) for row in rows], device=run.ids.device)
        whole, length = run.recording, columns.shape[1]
        recording = replace(
            whole,
            ids=whole.ids[at, columns],
            types=None if whole.types is None else whole.types[at, columns],
            states=tuple(state[at, columns] for state in whole.states),
        )
        positions = torch.arange(length, device=run.ids.device)[None]
        place, before = Place(positions, None, length, run.place.length), run.present()
        memory = None if before.memory is None else before.memory.pick(rows)
        here = replace(before, place=place, rotation=run.transformer.rotation(place), memory=memory)
        return cls(run, recording, here)

    @property
    def length(self) -> int:
        """How many tokens each row holds."""
        return self.recording.ids.shape[1]

    def writes(self, part: str) -> Float[Tensor, "M T S D"]:
        """What each of a part's senders writes: the embeddings, a layer's heads, or a feed-forward layer."""
        if part == "embed":
            return self.recording.states[0][:, :, None]
        steps = self.recording.transformer.steps
        heads = part in {each.name for step in steps for each in step.parts if isinstance(each, Attention)}
        with torch.no_grad(), self.run.precision.restored():
            value = self.recording.read(f"{part}.writes" if heads else f"{part}.update", self.here)
        return value if heads else value[:, :, None]


@dataclass(frozen=True, eq=False)
class Pair:
    """Rows of two traces of one model with the same number of tokens, and the model's graph."""

    graph: Graph
    base: Rows
    other: Rows
    rows: tuple[int, ...]
    kept: dict[str, Tensor] = field(default_factory=dict)

    @property
    def size(self) -> tuple[int, int]:
        """How many rows there are, and how many tokens in each."""
        return len(self.rows), self.base.length

    def written(self, part: str) -> Float[Tensor, "M T S D"]:
        """What each of a part's senders writes in the other run."""
        if part not in self.kept:
            self.kept[part] = self.other.writes(part)
        return self.kept[part]

    @property
    def change(self) -> Float[Tensor, "M S T D"]:
        """What each sender writes in the other run, less what it writes in the base."""
        if "" not in self.kept:
            parts = dict.fromkeys(sender.part for sender in self.graph.senders)
            changes = [self.written(part) - self.base.writes(part) for part in parts]
            self.kept[""] = torch.cat(changes, 2).transpose(1, 2)
        return self.kept[""]

    def forget(self) -> None:
        """Drop what was kept of the writes; it is read again when it is needed."""
        self.kept.clear()


def pairs(base: Run, other: Run, most: int) -> Iterator[Pair]:
    """The rows of two traces in groups of at most `most`, each of rows that hold the same number of tokens.

    Raises GraphError where the two cannot be compared write by write: other models, other numbers of rows or tokens,
    another text for a decoder's encoder, or an edit of something that is no sender's write.
    """
    graph = graph_of(base.transformer)
    _check(base, other)
    by_length: dict[int, list[int]] = {}
    for row in range(base.ids.shape[0]):
        lengths = [len(run.columns(row)) for run in (base, other)]
        if lengths[0] != lengths[1]:
            raise GraphError(f"row {row} must have as many tokens in both runs, got {lengths[0]} and {lengths[1]}")
        by_length.setdefault(lengths[0], []).append(row)
    for rows in by_length.values():
        for first in range(0, len(rows), most):
            some = rows[first : first + most]
            yield Pair(graph, Rows.of(base, some), Rows.of(other, some), tuple(some))


def _check(base: Run, other: Run) -> None:
    if base.transformer is not other.transformer:
        raise GraphError("both runs must be traces of one model, got two models")
    if base.ids.shape[0] != other.ids.shape[0]:
        raise GraphError(f"both runs must have as many rows, got {base.ids.shape[0]} and {other.ids.shape[0]}")
    for run in (base, other):
        run.check(run.prints)
        _check_edits(run)
    if base.source is not None and other.source is not None:
        streams = base.source.memory().stream, other.source.memory().stream
        if streams[0].shape != streams[1].shape or not torch.equal(*streams):
            raise GraphError("the graph is that of a decoder's stream: both runs need the same source text")


def _check_edits(run: Run) -> None:
    """Refuse edits that put into the stream what no sender wrote."""
    prefix = run.transformer.prefix
    for change in run.plan.changes:
        name = change.site.name
        between = name in state_sites(run.transformer)[1:]
        if between or name.endswith((".attention.update", ".cross.update")):
            raise GraphError(f"an edit of {name} is no write of a head: edit {prefix}0.stream, a head or a neuron")
        if change.edit.whole:
            raise GraphError(
                f"a function of the whole of {name} sees all rows at once, and here rows run by themselves"
            )

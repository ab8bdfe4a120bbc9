"""The model as a graph: what writes into the stream, what reads it, and an edge from each writer to each later reader.

Senders are the embeddings ("embed", all of them as one), every head ("3.attention head 5") and every feed-forward layer
("3.ffn"); biases are constants and send nothing. Receivers are each head's query ("4.attention.query head 2"), each
key-value head's key and value ("4.attention.key kv_head 1": where queries are grouped, one receiver for the heads that
share it), each feed-forward layer's input ("4.ffn"), and "final", the norm and the unembedding after the last state.
In a decoder with an encoder the keys and values of cross-attention are made of the encoder's stream: constants here.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from ..model.attention import Attention, CrossAttention
from ..model.config import PostNorm
from ..model.transformer import FeedForward, Transformer
from .errors import GraphError, SiteError
from .names import select

Names = str | Sequence[str]


class Edge(NamedTuple):
    """What a receiver reads of a sender, both by name."""

    sender: str
    receiver: str

    def __str__(self) -> str:
        return f"{self.sender} -> {self.receiver}"


@dataclass(frozen=True)
class Sender:
    """What writes into the stream. `state` is the first of the stream's states that holds the write."""

    name: str
    part: str
    state: int


@dataclass(frozen=True)
class Receiver:
    """What reads a state of the stream, and the senders whose writes are made of it."""

    name: str
    part: str
    state: int
    feeds: tuple[str, ...]


@dataclass(frozen=True)
class Graph:
    """Senders and receivers in the order the data flows; those of one part stand side by side."""

    senders: tuple[Sender, ...]
    receivers: tuple[Receiver, ...]

    @cached_property
    def exists(self) -> Bool[Tensor, "S R"]:
        """Which edges there are: those from a sender to a receiver that reads a state with its write in it."""
        written = torch.tensor([sender.state for sender in self.senders])
        read = torch.tensor([receiver.state for receiver in self.receivers])
        return written[:, None] <= read[None]

    @cached_property
    def sender(self) -> dict[str, int]:
        """The number of each sender by its name."""
        return {sender.name: at for at, sender in enumerate(self.senders)}

    @cached_property
    def receiver(self) -> dict[str, int]:
        """The number of each receiver by its name."""
        return {receiver.name: at for at, receiver in enumerate(self.receivers)}

    def edges(self, among: Bool[Tensor, "S R"] | None = None) -> Iterator[Edge]:
        """All edges, or those of a mask, sender by sender."""
        here = self.exists if among is None else self.exists & among
        for s, r in here.nonzero().tolist():
            yield Edge(self.senders[s].name, self.receivers[r].name)

    def mask(self, edges: Iterable[tuple[str, str]]) -> Bool[Tensor, "S R"]:
        """Some edges as a mask. Raises GraphError for a pair that is no edge."""
        found = torch.zeros_like(self.exists)
        for sender, receiver in edges:
            s, r = self.sender.get(sender), self.receiver.get(receiver)
            if s is None or r is None:
                raise GraphError(f"there is no edge {sender!r} -> {receiver!r}{self._hint(sender, receiver)}")
            if not self.exists[s, r]:
                raise GraphError(f"{receiver!r} stands before what {sender!r} writes, so it does not read it")
            found[s, r] = True
        return found

    def choose(self, names: Names, what: str) -> list[int]:
        """The numbers of the `what` ("sender" or "receiver") that a name or a pattern gives, or several of them.

        Patterns are those of sites: "*" for all, "*.attention head *", "3-5.ffn". Raises GraphError where nothing fits.
        """
        known = self.sender if what == "sender" else self.receiver
        found: set[int] = set()
        for name in [names] if isinstance(names, str) else names:
            try:
                found |= {known[each] for each in select(name, list(known))}
            except SiteError as error:
                raise GraphError(f"no {what} fits {name!r}; {_nearest(name, known)}") from error
        if not found:
            raise GraphError(f"at least one {what} is needed, got none")
        return sorted(found)

    def of_part(self, part: str) -> tuple[slice, slice]:
        """The numbers of a part's senders and receivers."""
        return _span([s.part == part for s in self.senders]), _span([r.part == part for r in self.receivers])

    def connected(self, among: Bool[Tensor, "S R"]) -> Bool[Tensor, "S R"]:
        """Those of some edges that lie on a path of them from the embeddings to the end.

        A sender's write is made of everything that its receivers read, so any edge into a head's query, key or value
        leads on through that head.
        """
        fed = torch.zeros(len(self.receivers), len(self.senders), dtype=torch.bool)
        for r, receiver in enumerate(self.receivers):
            fed[r, [self.sender[name] for name in receiver.feeds]] = True
        kept = among & self.exists
        while True:
            reached = (kept.any(0)[:, None] & fed).any(0)
            reached[0] = True
            leads = (fed & kept.any(1)[None]).any(1)
            leads[-1] = True
            new = kept & reached[:, None] & leads[None]
            if torch.equal(new, kept):
                return kept
            kept = new

    def _hint(self, sender: str, receiver: str) -> str:
        wrong = [(sender, "sender", self.sender), (receiver, "receiver", self.receiver)]
        return "".join(
            f"; no {what} is {name!r}, {_nearest(name, known)}" for name, what, known in wrong if name not in known
        )


def graph_of(transformer: Transformer) -> Graph:
    """The graph of a model whose stream is a plain sum. Raises GraphError for a post-norm model."""
    if isinstance(transformer.config.block, PostNorm):
        raise GraphError(
            "in a post-norm model what a part reads is no sum of writes: each went through norms on its way, whose "
            "scales change when a write does. The nearest exact question is what a write does to all that read it: "
            "base.edit(patch('0.attention.writes', source, head=0))"
        )
    senders, receivers = [Sender(f"{transformer.prefix}embed", "embed", 0)], []
    for state, step in enumerate(transformer.steps):
        for part in step.parts:
            own = _heads(part, state + 1) if isinstance(part, Attention) else [Sender(part.name, part.name, state + 1)]
            senders += own
            receivers += _reads(part, state, [sender.name for sender in own])
    receivers.append(Receiver(f"{transformer.prefix}final", "final", len(transformer.steps), ()))
    return Graph(tuple(senders), tuple(receivers))


def _heads(part: Attention, state: int) -> list[Sender]:
    return [Sender(f"{part.name} head {head}", part.name, state) for head in range(part.H)]


def _reads(part: Attention | FeedForward, state: int, senders: list[str]) -> list[Receiver]:
    """What a part reads the stream with; keys and values of a cross-attention are made of the encoder's."""
    if not isinstance(part, Attention):
        return [Receiver(part.name, part.name, state, tuple(senders))]
    own = [Receiver(f"{part.name}.query head {h}", part.name, state, (name,)) for h, name in enumerate(senders)]
    each = part.H // part.G
    for what in () if isinstance(part, CrossAttention) else ("key", "value"):
        for group in range(part.G):
            feeds = tuple(senders[group * each : (group + 1) * each])
            own.append(Receiver(f"{part.name}.{what} kv_head {group}", part.name, state, feeds))
    return own


def _span(here: list[bool]) -> slice:
    first = here.index(True)
    return slice(first, first + sum(here))


def _nearest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"they go from {known[0]!r} to {known[-1]!r}"

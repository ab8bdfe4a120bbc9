"""A trace: the residual stream of one forward pass, from which every other value is recomputed when it is asked for."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..model.config import Dropout
from ..model.flow import Memory, Pass
from ..model.place import Place, row_of
from ..model.transformer import Transformer
from ..text import Tokenizer
from ..views.table import Table
from .edits import Edit
from .errors import LedgerError, SiteError, WeightsChangedError
from .ledger import Ledger, direction_ledger, ledger, logit_direction
from .lens import lens, top
from .names import check_name, select
from .plan import Plan
from .reading import Point, Recording, all_sites, group_of, prints, state_sites
from .recorder import Recorder
from .rerun import edited

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Precision:
    """Autocast as it was while a trace was recorded; reading happens under the same."""

    device: str
    autocast: bool
    dtype: torch.dtype

    @classmethod
    def present(cls, device: torch.device) -> "Precision":
        """What is in force now for a device."""
        kind = device.type
        return cls(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """The recorded precision, for the time of a reading."""
        with torch.autocast(self.device, dtype=self.dtype, enabled=self.autocast):
            yield


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """One forward pass, complete: the states of the stream are kept, all else is a function of them.

    `states` holds the stream before each block, between its two sublayers and after the last: 2 L + 1 tensors of
    B x T x D. `trace["5.attention.pattern"]` recomputes that value from the state before it and one sublayer's weights;
    `names` lists what can be read. Dropout is off in a trace whatever the model's mode. Reading after the weights
    changed raises WeightsChangedError. An encoder-decoder's trace is its decoder's; `source` is the encoder's own.
    """

    recording: Recording
    place: Place
    precision: Precision
    tokenizer: Tokenizer | None
    prints: dict[str, Tensor]
    source: "Trace | None" = None
    plan: Plan = Plan()

    @property
    def transformer(self) -> Transformer:
        """The model that ran."""
        return self.recording.transformer

    @property
    def ids(self) -> Int[Tensor, "B T"]:
        """The token ids it ran on."""
        return self.recording.ids

    @property
    def states(self) -> tuple[Float[Tensor, "B T D"], ...]:
        """The recorded stream, first state to last."""
        return self.recording.states

    @cached_property
    def names(self) -> list[str]:
        """The names of all sites, in the order the data flows."""
        return [site.name for site in all_sites(self.transformer)]

    @property
    def nbytes(self) -> int:
        """What the trace holds in memory, in bytes, beside the model."""
        own = sum(state.nbytes for state in self.states) + self.ids.nbytes
        return own if self.source is None else own + self.source.nbytes

    @property
    def mask(self) -> Tensor | None:
        """B x T, True where a column holds a token; None when nothing is padded."""
        return self.place.real

    def __getitem__(self, site: str) -> Tensor:
        """One site's value; its shape is in `model.sites()`. Scores show -inf where the mask hides a key."""
        name = check_name(site, self.names)
        if self.source is not None and name.startswith(self.source.transformer.prefix):
            return self.source[name]
        self._check([group_of(self.transformer, name)])
        with torch.no_grad(), self.precision.restored():
            return self.recording.read(name, self.present())

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits that this trace was made with, the encoder's among them, in order."""
        return self.plan.edits if self.source is None else (*self.source.edits, *self.plan.edits)

    def edit(self, *edits: Edit) -> "Trace":
        """The trace of the same input with these edits, in their order, after those already made.

        Only what they can change is run again: from the first state, and in a causal model from the first position.
        """
        return edited(self, edits)

    def with_states(self, states: tuple[Float[Tensor, "B T D"], ...]) -> "Trace":
        """This trace with other states of the stream."""
        return replace(self, recording=replace(self.recording, states=states))

    def by_position(self, site: str, row: int = 0) -> Float[Tensor, "P ..."]:
        """A site's value in one row, one entry for each token by position, padding left out; keys by position too."""
        found = next(each for each in all_sites(self.transformer) if each.name == check_name(site, self.names))
        if "T" not in found.axes:
            raise SiteError(f"{site} has no positions")
        owner = self
        if self.source is not None and site.startswith(self.source.transformer.prefix):
            owner = self.source
        value = self[site][row].movedim(found.axes.index("T") - 1, 0)[owner.columns(row)]
        if found.axes[-1] == "S":
            keys = self.source if self.source is not None and ".cross." in site else owner
            value = value[..., keys.columns(row)]
        return value

    def read(self, pattern: str) -> dict[str, Tensor]:
        """Every site that a pattern names: `*` for any layer, `3-5.ffn.neurons` for a range of layers."""
        return {name: self[name] for name in select(pattern, self.names)}

    def columns(self, row: int = 0) -> list[int]:
        """The columns of a row that hold tokens, padding left out."""
        rows = self.ids.shape[0]
        if not -rows <= row < rows:
            raise ValueError(f"the trace has rows 0..{rows - 1}, got row={row}")
        real = self.place.real
        return list(range(self.ids.shape[1])) if real is None else real[row].nonzero().flatten().tolist()

    def column(self, row: int = 0, position: int = -1) -> int:
        """The column of one token, by its number among the row's tokens; -1 is the last."""
        columns = self.columns(row)
        if not -len(columns) <= position < len(columns):
            raise ValueError(f"row {row} has positions 0..{len(columns) - 1}, got position={position}")
        return columns[position]

    def tokens(self, row: int = 0) -> list[str]:
        """The tokens of a row as printable labels, one a position; padding is left out."""
        ids = self.ids[row, self.columns(row)].tolist()
        return [str(i) for i in ids] if self.tokenizer is None else self.tokenizer.labels(ids)

    def top(self, k: int = 5, row: int = 0, position: int = -1) -> Table:
        """The k most probable next tokens after a position (-1: the row's last token)."""
        return self._ask(partial(top, k=k), row, position, ["final"])

    def lens(self, token: str | int | None = None, row: int = 0, position: int = -1) -> Table:
        """What each depth would say (logit lens: the final norm with fresh statistics, then the unembedding).

        Follows `token` through the depths; without it, the token that the model finally finds most probable.
        """
        return self._ask(partial(lens, token=self._id(token)), row, position, ["final"])

    def ledger(
        self,
        token: str | int | None = None,
        minus: str | int | None = None,
        by: str = "sublayer",
        row: int = 0,
        position: int = -1,
        direction: Float[Tensor, "D"] | None = None,
    ) -> Ledger:
        """Who wrote a logit, or the difference of two: entries that add up to it, with the remainder.

        `by` is "sublayer" or "head". With a `direction` of shape D instead of a token, who wrote the final stream along
        it. Raises LedgerError where no exact answer exists, naming the nearest question that has one.
        """
        if (token is None) == (direction is None):
            raise LedgerError("a ledger is of a token or of a direction: give one of the two")
        if direction is not None:
            return self._ask(partial(direction_ledger, direction=direction, by=by), row, position, self.prints)
        assert token is not None
        question = partial(ledger, token=self.id_of(token), minus=self._id(minus), by=by)
        return self._ask(question, row, position, self.prints)

    def direction(
        self, token: str | int, minus: str | int | None = None, row: int = 0, position: int = -1
    ) -> Float[Tensor, "D"]:
        """What a logit (or the difference of two) reads of the final stream, everything behind it frozen; float64."""
        question = partial(logit_direction, token=self.id_of(token), minus=self._id(minus))
        return self._ask(question, row, position, ["final"])

    def _id(self, token: str | int | None) -> int | None:
        return None if token is None else self.id_of(token)

    def id_of(self, token: str | int) -> int:
        """The id of one token, given as its text or as the id itself."""
        if isinstance(token, str):
            if self.tokenizer is None:
                raise ValueError(f"this model has no tokenizer: give the id instead of {token!r}")
            return self.tokenizer.id_of(token)
        vocab = self.transformer.config.vocab_size
        if not 0 <= token < vocab:
            raise ValueError(f"token ids lie in 0..{vocab - 1}, got {token}")
        return token

    def __repr__(self) -> str:
        rows, columns = self.ids.shape
        return f"Trace({rows} x {columns} tokens, {len(self.states)} states, {self.nbytes / 1e6:.1f} MB)"

    def present(self, row: int | None = None) -> Pass:
        """The pass as it was, or one row of it without padding; edits of states are left out, which hold them."""
        place, memory = self.place, None if self.source is None else self.source.memory()
        if row is not None:
            place = row_of(place, row)
            memory = None if memory is None else memory.pick([row])
        looks = self.plan.looks(leave_out=state_sites(self.transformer))
        return Pass(place, self.transformer.rotation(place), looks=looks or None, memory=memory)

    def memory(self) -> Memory:
        """What a decoder attends to, if this is its encoder's trace."""
        with torch.no_grad(), self.precision.restored():
            return Memory(self.transformer.normed(self.states[-1], self.present()), self.place)

    def _check(self, groups: Iterable[str]) -> None:
        """Refuse to recompute with other weights than those the states came from."""
        now = prints(self.transformer, groups)
        for group, sample in now.items():
            if not torch.equal(self.prints[group], sample):
                raise WeightsChangedError(f"the weights of {group} changed since this trace was made: trace it again")

    def _point(self, row: int, position: int) -> Point:
        """One token of one row, by its number among the row's tokens."""
        column = self.column(row, position)
        row = range(self.ids.shape[0])[row]
        return Point(self.recording.row(row), self.present(row), column, self.tokenizer, frozenset(self.plan.sites()))

    def _ask(self, question: Callable[[Point], Answer], row: int, position: int, groups: Iterable[str]) -> Answer:
        point = self._point(row, position)
        self._check(groups)
        with torch.no_grad(), self.precision.restored():
            return question(point)


@torch.no_grad()
def trace(
    transformer: Transformer,
    ids: Int[Tensor, "B T"],
    mask: Tensor | None = None,
    tokenizer: Tokenizer | None = None,
    types: Int[Tensor, "B T"] | None = None,
    source: Trace | None = None,
) -> Trace:
    """Run the model once and keep the stream. `mask` is B x T, 1 for tokens and 0 for padding on either side.

    `types` are BERT's token types. A decoder with an encoder needs its encoder's trace as `source`.
    """
    recorder = Recorder(transformer)
    memory = None if source is None else source.memory()
    here = replace(transformer.begin(ids, mask, looks=recorder.looks, memory=memory), dropout=Dropout())
    transformer.run(transformer.embed(ids, here, types), here)
    return replace(recorded(transformer, recorder, ids, tokenizer, types), source=source)


def recorded(
    transformer: Transformer,
    recorder: Recorder,
    ids: Int[Tensor, "B T"],
    tokenizer: Tokenizer | None,
    types: Int[Tensor, "B T"] | None = None,
) -> Trace:
    """The trace of what a recorder has seen: all columns of `ids`, in one pass or in several through a cache."""
    assert recorder.place is not None, "nothing was recorded"
    recording = Recording(transformer, ids, types, recorder.states())
    return Trace(recording, recorder.place, Precision.present(ids.device), tokenizer, prints(transformer))

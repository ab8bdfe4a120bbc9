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
from ..model.flow import Pass
from ..model.place import Place, row_of
from ..model.sites import sites
from ..model.transformer import Transformer
from ..text import Tokenizer
from ..views.table import Table
from .errors import WeightsChangedError
from .ledger import Ledger, ledger
from .lens import lens, top
from .names import check_name, select
from .reading import Point, group_of, prints, read
from .recorder import Recorder

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
    changed raises WeightsChangedError.
    """

    transformer: Transformer
    ids: Int[Tensor, "B T"]
    place: Place
    states: tuple[Float[Tensor, "B T D"], ...]
    precision: Precision
    tokenizer: Tokenizer | None
    prints: dict[str, Tensor]

    @cached_property
    def names(self) -> list[str]:
        """The names of all sites, in the order the data flows."""
        return [site.name for site in sites(self.transformer.config)]

    @property
    def nbytes(self) -> int:
        """What the trace holds in memory, in bytes, beside the model."""
        return sum(state.nbytes for state in self.states) + self.ids.nbytes

    @property
    def mask(self) -> Tensor | None:
        """B x T, True where a column holds a token; None when nothing is padded."""
        return self.place.real

    def __getitem__(self, site: str) -> Tensor:
        """One site's value; its shape is in `model.sites()`. Scores show -inf where the mask hides a key."""
        name = check_name(site, self.names)
        self._check([group_of(name)])
        with torch.no_grad(), self.precision.restored():
            return read(self.transformer, name, self.ids, self.states, self._pass())

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
        followed = None if token is None else self.id_of(token)
        return self._ask(partial(lens, token=followed), row, position, ["final"])

    def ledger(
        self, token: str | int, minus: str | int | None = None, by: str = "sublayer", row: int = 0, position: int = -1
    ) -> Ledger:
        """Who wrote a logit, or the difference of two: entries that add up to it, with the remainder.

        `by` is "sublayer" or "head".
        """
        other = None if minus is None else self.id_of(minus)
        question = partial(ledger, token=self.id_of(token), minus=other, by=by)
        return self._ask(question, row, position, self.prints)

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

    def _pass(self, place: Place | None = None) -> Pass:
        place = place or self.place
        return Pass(place, self.transformer.rotation(place))

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
        states = tuple(state[row : row + 1] for state in self.states)
        here = self._pass(row_of(self.place, row))
        return Point(self.transformer, self.ids[row : row + 1], states, here, column, self.tokenizer)

    def _ask(self, question: Callable[[Point], Answer], row: int, position: int, groups: Iterable[str]) -> Answer:
        point = self._point(row, position)
        self._check(groups)
        with torch.no_grad(), self.precision.restored():
            return question(point)


@torch.no_grad()
def trace(
    transformer: Transformer, ids: Int[Tensor, "B T"], mask: Tensor | None = None, tokenizer: Tokenizer | None = None
) -> Trace:
    """Run the model once and keep the stream. `mask` is B x T, 1 for tokens and 0 for padding on either side."""
    recorder = Recorder(transformer)
    here = replace(transformer.begin(ids, mask, looks=recorder.looks), dropout=Dropout())
    transformer.run(transformer.embed(ids, here), here)
    return recorded(transformer, recorder, ids, tokenizer)


def recorded(
    transformer: Transformer, recorder: Recorder, ids: Int[Tensor, "B T"], tokenizer: Tokenizer | None
) -> Trace:
    """The trace of what a recorder has seen: all columns of `ids`, in one pass or in several through a cache."""
    assert recorder.place is not None, "nothing was recorded"
    precision = Precision.present(ids.device)
    return Trace(transformer, ids, recorder.place, recorder.states(), precision, tokenizer, prints(transformer))

"""What was recorded of one forward pass, and how every value of it is read again."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..model.flow import Memory, Pass
from ..model.place import Place, columns, row_of
from ..model.transformer import Transformer
from ..text import Tokenizer
from .edits import Edit
from .errors import SiteError, WeightsChangedError
from .names import check_name, select
from .plan import Plan
from .reading import Recording, all_sites, group_of, prints, state_sites


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
class Run:
    """One forward pass: its stream, where it stood, under which precision, and the edits made in it."""

    recording: Recording
    place: Place
    precision: Precision
    tokenizer: Tokenizer | None
    prints: dict[str, Tensor]
    source: "Run | None" = None
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
        if not isinstance(site, str):
            raise SiteError(f"a site is a name such as '0.attention.pattern', got {site!r}")
        name = check_name(site, self.names)
        if self.source is not None and name.startswith(self.source.transformer.prefix):
            return self.source[name]
        self.check([group_of(self.transformer, name)])
        with torch.set_grad_enabled(self.attached), self.precision.restored():
            return self.recording.read(name, self.present())

    def several(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Some sites, in the order the data flows: each what it is by itself, read in few passes."""
        wanted = {check_name(name, self.names) for name in names}
        known = [name for name in self.names if name in wanted]
        found: dict[str, Tensor] = {}
        if self.source is not None:
            theirs = [name for name in known if name.startswith(self.source.transformer.prefix)]
            found = self.source.several(theirs) if theirs else {}
            known = known[len(theirs) :]
        self.check({group_of(self.transformer, name) for name in known})
        with torch.set_grad_enabled(self.attached), self.precision.restored():
            return found | self.recording.several(known, self.present())

    @property
    def attached(self) -> bool:
        """Whether the states keep their graph; then what is read from them does, for ordinary autograd."""
        return self.states[-1].requires_grad

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits that this trace was made with, the encoder's among them, in order."""
        return self.plan.edits if self.source is None else (*self.source.edits, *self.plan.edits)

    def with_states(self, states: tuple[Float[Tensor, "B T D"], ...]) -> Self:
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
        columns = owner.columns(row)
        value = self[site][row].movedim(found.axes.index("T") - 1, 0)[columns]
        if found.axes[-1] == "S":
            keys = self.source if self.source is not None and ".cross." in site else owner
            value = value[..., keys.columns(row)]
        return value

    def read(self, pattern: str) -> dict[str, Tensor]:
        """Every site that a pattern names: `*` for any layer, `3-5.ffn.neurons` for a range, `*` alone for all."""
        return {name: self[name] for name in select(pattern, self.names)}

    def columns(self, row: int = 0) -> list[int]:
        """The columns of a row that hold tokens, padding left out."""
        rows = self.ids.shape[0]
        if not isinstance(row, int) or not -rows <= row < rows:
            raise ValueError(f"the trace has rows 0..{rows - 1}, got row={row!r}")
        real = self.place.real
        return list(range(self.ids.shape[1])) if real is None else real[row].nonzero().flatten().tolist()

    def column(self, row: int = 0, position: int = -1) -> int:
        """The column of one token, by its number among the row's tokens; -1 is the last."""
        columns = self.columns(row)
        if not isinstance(position, int) or not -len(columns) <= position < len(columns):
            raise ValueError(f"row {row} has positions 0..{len(columns) - 1}, got position={position!r}")
        return columns[position]

    def tokens(self, row: int = 0) -> list[str]:
        """The tokens of a row as printable labels, one a position; padding is left out."""
        ids = self.ids[row, self.columns(row)].tolist()
        return [str(i) for i in ids] if self.tokenizer is None else self.tokenizer.labels(ids)

    def id_of(self, token: str | int) -> int:
        """The id of one token, given as its text or as the id itself."""
        if isinstance(token, str):
            if self.tokenizer is None:
                raise ValueError(f"this model has no tokenizer: give the id instead of {token!r}")
            return self.tokenizer.id_of(token)
        vocab = self.transformer.config.vocab_size
        if isinstance(token, bool) or not isinstance(token, int):
            raise ValueError(f"a token is its text or its id, got {token!r}")
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

    def logits_at(self, row: int, at: list[int]) -> Float[Tensor, "P V"]:
        """The logits at some columns of a row, and no others; they are not computed for the rest."""
        self.check(["final"])
        here, state = self.present(row), self.states[-1][row : row + 1, at]
        with self.precision.restored():
            return self.transformer.logits(state, replace(here, place=columns(here.place, at), rotation=None))[0]

    def memory(self) -> Memory:
        """What a decoder attends to, if this is its encoder's trace."""
        with torch.set_grad_enabled(self.attached), self.precision.restored():
            return Memory(self.transformer.normed(self.states[-1], self.present()), self.place)

    def check(self, groups: Iterable[str]) -> None:
        """Refuse to recompute with other weights than those the states came from."""
        now = prints(self.transformer, groups)
        for group, sample in now.items():
            if not torch.equal(self.prints[group], sample):
                raise WeightsChangedError(f"the weights of {group} changed since this trace was made: trace it again")

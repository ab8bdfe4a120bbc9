"""A trace: the residual stream of one forward pass, from which every other value is recomputed when it is asked for."""

import os
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..model.config import Dropout
from ..model.transformer import Transformer
from ..text import Tokenizer
from ..views.table import Table
from ..views.view import View
from .asking import account, ask
from .edits import Edit
from .errors import LedgerError
from .gradients import Gradients, gradients
from .ledger import Ledger, direction_ledger, ledger, logit_direction
from .lens import Translator, lens, top
from .linear_readings import Question
from .metrics import Metric
from .reading import Recording, prints
from .receivers import wrote
from .recorder import Recorder
from .renamed import Renamed, renamed
from .rerun import check_reached, edited
from .run import Precision, Run
from .shown.showing import show
from .trace_file import save_trace


@dataclass(frozen=True, eq=False, repr=False)
class Trace(Run):
    """One forward pass, complete: the states of the stream are kept, all else is a function of them.

    `states` holds the stream before each block, between its two sublayers and after the last: 2 L + 1 tensors of
    B x T x D. `trace["5.attention.pattern"]` recomputes that value from the state before it and one sublayer's weights;
    `names` lists what can be read. Dropout is off in a trace whatever the model's mode. Reading after the weights
    changed raises WeightsChangedError. An encoder-decoder's trace is its decoder's; `source` is the encoder's own.
    """

    def edit(self, *edits: Edit) -> "Trace":
        """The trace of the same input with these edits, in their order, after those already made.

        Only what they can change is run again: from the first state, and in a causal model from the first position.
        Raises EditError for edits that make no sense for the model, collide, or name positions that the text has not.
        """
        check_reached(self, edits)
        return edited(self, edits) if edits else self

    def top(self, k: int = 5, row: int = 0, position: int = -1) -> Table:
        """The k most probable next tokens after a position (-1: the row's last token)."""
        return ask(self, partial(top, k=k), row, position, ["final"])

    def lens(
        self, token: str | int | None = None, row: int = 0, position: int = -1, tuned: Translator | None = None
    ) -> Table:
        """What each depth would say (logit lens: the final norm with fresh statistics, then the unembedding).

        Follows `token` through the depths; without it, the token that the model finally finds most probable. A `tuned`
        lens (TunedLens, JacobianLens) is read instead of the states themselves.
        """
        return ask(self, partial(lens, token=self._id(token), tuned=tuned), row, position, ["final"])

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

        `by` is "sublayer", "head", "neuron" (and heads), "source" (by the position that attention brought it from, over
        all layers) or "head and source". With a `direction` of shape D instead of a token, who wrote the final stream
        along it; `wrote` asks of every other state. Raises LedgerError where no exact answer exists, naming the nearest
        question that has one.
        """
        if (token is None) == (direction is None):
            raise LedgerError("a ledger is of a token or of a direction: give one of the two")
        if direction is not None:
            return account(self, partial(direction_ledger, direction=direction, by=by), row, position, self.prints)
        assert token is not None
        question = partial(ledger, token=self.id_of(token), minus=self._id(minus), by=by)
        return account(self, question, row, position, self.prints)

    def wrote(
        self,
        site: str,
        along: Float[Tensor, "N"] | None = None,
        by: str = "sublayer",
        row: int = 0,
        position: int = -1,
        **where: int,
    ) -> Ledger:
        """Who wrote what a site reads: a ledger of a state, a query, a key, a value, a neuron before its activation.

        `wrote("9.ffn.up", neuron=7)`; `wrote("9.attention.query", head=6, key=3)` is of the score, the query along the
        key that it meets at position 3, and `wrote("9.attention.key", head=6, query=12, position=3)` the other way
        round. Else `along` gives the direction, of the site's width: `wrote("5.stream", along=probe)`. Reading norms
        are held at their scale. `by` is as in `ledger`. Of keys and values made from an encoder the senders, and
        `position`, are the encoder's. Raises SiteError for no site, LedgerError for what is no sum.
        """
        self.check(self.prints)
        with torch.no_grad(), self.precision.restored():
            return wrote(self, Question(site, along, by, where), row, position)

    def direction(
        self, token: str | int, minus: str | int | None = None, row: int = 0, position: int = -1
    ) -> Float[Tensor, "D"]:
        """What a logit (or the difference of two) reads of the final stream, everything behind it frozen; float64."""
        question = partial(logit_direction, token=self.id_of(token), minus=self._id(minus))
        return account(self, question, row, position, ["final"])

    def gradient(self, metric: Metric, row: int | None = None) -> Gradients:
        """d metric / d value at every site, of one row's metric or of the sum over rows: `gradient(m)["3.stream"]`."""
        self.check(self.prints)
        return gradients(self, metric, row)

    def show(self, view: str = "glance", **chosen: int | str) -> View:
        """A picture of the first row that answers to the hand: in a notebook as it is, else `.save("x.html")`.

        `view` is "glance", "stream", "attention", "heads", "ffn" or "pass"; what is chosen in it is `layer`, `head`,
        `part` ("attention", "cross"), `position`, `key`, `neuron` or `token`. Raises ValueError for what there is not.
        """
        return show(self, view, **chosen)

    def to_transformer_lens_names(self) -> Renamed:
        """This trace under TransformerLens's names: a mapping whose values are recomputed when they are asked for."""
        return renamed(self)

    def to_hugging_face_names(self, family: str) -> Renamed:
        """This trace under the names of Hugging Face's modules; `family` is their model_type, such as "gpt2"."""
        return renamed(self, family)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to a .safetensors file, without its model. Raises EditError if a free function edited it."""
        save_trace(self, path)

    def _id(self, token: str | int | None) -> int | None:
        return None if token is None else self.id_of(token)


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
    with torch.no_grad():
        return attached(transformer, ids, mask, tokenizer, types, source)


def attached(
    transformer: Transformer,
    ids: Int[Tensor, "B T"],
    mask: Tensor | None = None,
    tokenizer: Tokenizer | None = None,
    types: Int[Tensor, "B T"] | None = None,
    source: Trace | None = None,
) -> Trace:
    """A trace whose states keep their graph, for ordinary autograd: down to the weights where these want gradients.

    All that is read from it is attached, and edits of it are: what is made of a site leads back to the weights, to the
    states before it and to an edit's own value (a steering vector that is trained). It holds what a training step does.
    """
    recorder = Recorder(transformer)
    memory = None if source is None else source.memory()
    here = replace(transformer.begin(ids, mask, looks=recorder.looks, memory=memory), dropout=Dropout())
    if here.place.document is not None:
        raise ValueError("a trace reads one text a row, and this mask numbers several: give each a row of its own")
    x = transformer.embed(ids, here, types)
    if torch.is_grad_enabled() and not x.requires_grad:
        x.requires_grad_()
    transformer.run(x, here)
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

"""Beam search: the most probable continuations as a whole, where greedy choice looks no further than the next token."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..model.cache import Cache
from ..model.config import Dropout
from ..model.flow import Memory, Pass
from ..model.place import tail
from ..model.transformer import Transformer
from .decode import FinishReason, chunk_size, same_rotation
from .prompts import checked, pad_left
from .warp import forbid

MOST_PENALTY = 32.0  # n ** 32 is a finite number for any n below 2^31, and so is n ** -32


@dataclass(frozen=True)
class Beams:
    """How wide to search, how to weigh length, and when to end.

    At every step the `width` most probable branches go on, whichever of them they grew from; `forbidden_ids` are never
    chosen. A branch ends at one of `stop_ids` (held back before `min_new_tokens`; the id belongs to it), or after
    `max_new_tokens` or where the context is full; the `width` ended ones of highest score are kept, and the best
    `returned` of them given back. The score is

        sum of log-probabilities / n ** length_penalty        n: its tokens, the stop id among them, the prompt not

    so that 0 compares sums, 1 means per token, and more favours long text (as Hugging Face counts; Wu et al. 2016
    divide by ((5 + n) / 6) ** penalty). Once `width` branches have ended, the search does too:

    - `early_stopping` True: at once;
    - False: when the best branch that grows, scored at its present length, does not exceed the worst ended one;
    - "never": the same, but where a positive penalty favours long text it is scored at the greatest length there is.

    With `width` 1 the first end is the last in all three: it is greedy choice. Raises ValueError, naming what was
    expected and what came.
    """

    width: int = 4
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    returned: int = 1
    max_new_tokens: int = 128
    min_new_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    forbidden_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("width", 1), ("returned", 1), ("max_new_tokens", 0), ("min_new_tokens", 0)):
            if not _is_whole(vars(self)[name], least):
                raise ValueError(f"{name} must be a whole number of at least {least}, got {vars(self)[name]!r}")
        if self.returned > self.width:
            raise ValueError(f"returned must not exceed width, got {self.returned} and {self.width}")
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens must not exceed max_new_tokens, got {self.min_new_tokens} and {self.max_new_tokens}"
            )
        penalty = self.length_penalty
        if not isinstance(penalty, Real) or isinstance(penalty, bool) or not abs(penalty) <= MOST_PENALTY:
            raise ValueError(f"length_penalty must lie in -{MOST_PENALTY:g}..{MOST_PENALTY:g}, got {penalty!r}")
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise ValueError(f'early_stopping must be True, False or "never", got {self.early_stopping!r}')
        for name in ("stop_ids", "forbidden_ids"):
            ids = vars(self)[name]
            if not isinstance(ids, list | tuple) or not all(_is_whole(id) for id in ids):
                raise ValueError(f"{name} must be a tuple of whole numbers of at least 0, got {ids!r}")
            object.__setattr__(self, name, tuple(dict.fromkeys(ids)))

    def score(self, logprob: float, tokens: int) -> float:
        """A sum of log-probabilities, weighed by its number of tokens."""
        return logprob / float(tokens) ** self.length_penalty


@dataclass(frozen=True)
class Hypothesis:
    """A continuation that has ended: its new ids, its score, and the sum of its tokens' log-probabilities."""

    ids: tuple[int, ...]
    score: float
    logprob: float
    finish_reason: FinishReason


@dataclass(frozen=True)
class Branch:
    """New ids so far, the sum of their log-probabilities, and which branch (by number) it grew from."""

    ids: tuple[int, ...] = ()
    logprob: float = 0.0
    parent: int = 0


class Search:
    """The search from one prompt, with `room` for new tokens: branches that grow and those that have ended, best first.

    No branch grows once the search is over.
    """

    def __init__(self, room: int, beams: Beams):
        self.room, self.beams = room, beams
        self.branches = [Branch()] if room else []
        self.ended: list[Hypothesis] = [] if room else [Hypothesis((), 0.0, 0.0, "length")]

    def grow(self, logprobs: Float[Tensor, "b V"]) -> None:
        """From the next token's log-probabilities for each branch (-inf: forbidden) to the next branches."""
        beams = self.beams
        # A branch can stop in as many ways as there are stop ids: so many are enough for `width` that go on.
        best = self._best(logprobs, beams.width * (1 + len(beams.stop_ids)))
        # What ends must be among the best of all; what goes on, among the best of those that do.
        found = [self._hypothesis(branch, reason) for branch in best[: beams.width] if (reason := self._reason(branch))]
        self.ended = sorted(self.ended + found, key=_score, reverse=True)[: beams.width]
        self.branches = [branch for branch in best if not self._reason(branch)][: beams.width]
        if self._is_over():
            self.branches = []

    def _best(self, logprobs: Float[Tensor, "b V"], n: int) -> list[Branch]:
        """The n most probable continuations by one token; of equals, those of the earlier branch and the lower id."""
        sums = logprobs + logprobs.new_tensor([branch.logprob for branch in self.branches])[:, None]
        flat = sums.flatten()
        least = flat.topk(min(n, len(flat))).values[-1]
        at = ((flat >= least) & (flat > -torch.inf)).nonzero()[:, 0]
        at = at[flat[at].argsort(descending=True, stable=True)[:n]]
        V = logprobs.shape[-1]
        return [
            Branch((*self.branches[index // V].ids, index % V), logprob, index // V)
            for index, logprob in zip(at.tolist(), flat[at].tolist(), strict=True)
        ]

    def _reason(self, branch: Branch) -> FinishReason | None:
        if branch.ids[-1] in self.beams.stop_ids:
            return "stop"
        return "length" if len(branch.ids) == self.room else None

    def _hypothesis(self, branch: Branch, reason: FinishReason) -> Hypothesis:
        return Hypothesis(branch.ids, self.beams.score(branch.logprob, len(branch.ids)), branch.logprob, reason)

    def _is_over(self) -> bool:
        beams = self.beams
        if not self.branches or len(self.ended) < beams.width:
            return not self.branches
        if beams.early_stopping is True or beams.width == 1:
            return True
        best = self.branches[0]
        hoped = self.room if beams.early_stopping == "never" and beams.length_penalty > 0 else len(best.ids)
        return beams.score(best.logprob, hoped) <= self.ended[-1].score


class Reader:
    """Reads rows of ids through a cache; rows are reordered, repeated and left out as their branches are.

    At first there is a row for each of `prompts` prompts, as in their `memory`. Gradients are off, and so is dropout,
    in whatever mode the model is.
    """

    def __init__(self, transformer: Transformer, prompts: int, length: int, memory: Memory | None):
        self.transformer, self.length = transformer, length
        self.cache = Cache(transformer.config.masks)
        self.memory = None if memory is None else replace(memory, kept={})
        self.prompts = list(range(prompts))  # which of them each row follows

    @torch.no_grad()
    def __call__(self, ids: Int[Tensor, "B T"], mask: Tensor | None = None) -> Float[Tensor, "B V"]:
        """The log-probabilities of the token after the last column, in at least fp32."""
        chunk = chunk_size(self.transformer.config) if mask is None else None
        *before, last = ids.split(chunk or ids.shape[1], dim=1)
        for part in before:
            self._stream(part, None)
        x, here = self._stream(last, mask)
        end = replace(here, place=tail(here.place, x.shape[1] - 1))
        logits = self.transformer.logits(x[:, -1:], end)[:, 0]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        logprobs = logits - logits.logsumexp(-1, keepdim=True)
        if bool(logprobs.isnan().any()):
            raise ValueError("the logits are not finite numbers: run the model in a wider dtype")
        return logprobs

    def _stream(self, ids: Int[Tensor, "B T"], mask: Tensor | None) -> tuple[Float[Tensor, "B T D"], Pass]:
        here = self.transformer.begin(ids, mask, self.cache, None, self.length, self.memory)
        here = replace(here, dropout=Dropout())
        return self.transformer.run(self.transformer.embed(ids, here), here), here

    def keep(self, rows: list[int]) -> None:
        """Go on with these rows, in this order; one that is named twice goes on twice."""
        if rows == list(range(len(self.prompts))):
            return
        self.cache.keep(rows)
        prompts = [self.prompts[row] for row in rows]
        # Rows of one prompt attend to the same text: their memory moves only when their number changes.
        if self.memory is not None and prompts != self.prompts:
            self.memory = self.memory.pick(rows)
        self.prompts = prompts


def beam_search(
    transformer: Transformer,
    prompts: Sequence[Sequence[int]],
    beams: Beams,
    forbidden_ids: Sequence[int] = (),
    memory: Memory | None = None,
) -> list[list[Hypothesis]]:
    """The best continuations of each prompt, highest score first.

    `prompts` are lists of ids of any lengths, searched together: shorter ones are padded on the left, and get what they
    would get alone. Ids of `forbidden_ids` are never chosen, and take no probability from the others. An
    encoder-decoder needs the encoder's `memory`, one row per prompt, and its prompts begin the decoder's text. A prompt
    gets fewer than `beams.returned` only if the vocabulary has no more continuations, and an empty one if there is no
    room for a token.

    Raises ValueError for a prompt that is empty, not made of ids of the vocabulary, or longer than the context, for
    other ids outside the vocabulary, a memory of another number of rows, and logits that are not numbers.
    """
    config = transformer.config
    rows = [checked(prompt, row, config) for row, prompt in enumerate(prompts)]
    _check_choice(beams, forbidden_ids, config.vocab_size)
    if memory is not None and len(memory.stream) != len(rows):
        raise ValueError(f"memory must have one row per prompt ({len(rows)}), got {len(memory.stream)}")
    ends = [min(len(ids) + beams.max_new_tokens, config.context_length) for ids in rows]
    searches = [Search(end - len(ids), beams) for end, ids in zip(ends, rows, strict=True)]
    for group in same_rotation(ends, config):
        group = [row for row in group if searches[row].branches]
        if group:
            length = max(ends[row] for row in group)
            reader = Reader(transformer, len(group), length, None if memory is None else memory.pick(group))
            _together([searches[row] for row in group], [rows[row] for row in group], reader, forbidden_ids)
    return [search.ended[: beams.returned] for search in searches]


def _together(searches: list[Search], prompts: list[list[int]], reader: Reader, forbidden_ids: Sequence[int]) -> None:
    """Run the searches to their ends, a token of every branch of all of them at a time."""
    device = reader.transformer.embed.words.device
    beams, made = searches[0].beams, 0
    ids, mask = pad_left(prompts, device)
    while searches:
        held_back = [*forbidden_ids, *(beams.stop_ids if made < beams.min_new_tokens else ())]
        logprobs = forbid(reader(ids, mask), torch.tensor(held_back, dtype=torch.long, device=device))
        of_each = logprobs.split([len(search.branches) for search in searches])
        rows, first = [], 0
        for search, grown in zip(searches, of_each, strict=True):
            search.grow(grown)
            rows += [first + branch.parent for branch in search.branches]
            first += len(grown)
        searches = [search for search in searches if search.branches]
        if searches:
            reader.keep(rows)
            last = [[branch.ids[-1]] for search in searches for branch in search.branches]
            ids, mask, made = torch.tensor(last, device=device), None, made + 1


def _check_choice(beams: Beams, forbidden_ids: Sequence[int], vocab_size: int) -> None:
    """Refuse ids that are none, and a choice among nothing."""
    for name, ids in (("stop_ids", beams.stop_ids), ("forbidden ids", forbidden_ids)):
        for token in ids:
            if not 0 <= token < vocab_size:
                raise ValueError(f"{name} must lie in 0..{vocab_size - 1}, got {token}")
    if len({*forbidden_ids, *(beams.stop_ids if beams.min_new_tokens else ())}) >= vocab_size:
        raise ValueError("every id of the vocabulary is forbidden: nothing can be generated")


def _is_whole(value: object, least: int = 0) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def _score(hypothesis: Hypothesis) -> float:
    return hypothesis.score

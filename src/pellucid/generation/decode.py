"""Prefill, then one token at a time: an iterator of the tokens of a batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..model.cache import Cache
from ..model.config import Config, Dropout, Window
from ..model.flow import Looks, Memory, Pass
from ..model.place import pick, tail
from ..model.rotary import Rotary, frequencies
from ..model.transformer import Transformer
from .choose import Chooser, row_seeds
from .prompts import checked, pad_left
from .sampling import Sampling

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Token:
    """A new token of one prompt. `logprob` is log-softmax of the model's own logits, before any penalty or warp."""

    row: int
    id: int
    logprob: float
    finish_reason: FinishReason | None


@dataclass(frozen=True)
class Step:
    """One forward pass: the rows (numbers of prompts) it held, in order, and the tokens it led to.

    A pass that only reads a last token leads to none.
    """

    rows: tuple[int, ...]
    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class Watch:
    """Who looks at every forward pass, whose rows the step names; of "final.*" and "logits" the last column alone.

    With `read_last` the final token of every row is read too (without unembedding it), so that looks have seen every
    token of the sequence.
    """

    looks: Looks
    read_last: bool = False


class Decoding:
    """The tokens that follow each prompt of a batch, as steps to iterate over.

    `prompts` are lists of ids of any lengths: shorter ones are padded on the left, and get what they would get alone.
    A row ends with "stop" at one of `sampling.stop_ids` (the token is still given), or with "length" after
    `sampling.max_new_tokens` or where prompt and output fill `config.context_length`; then it leaves the batch. Ids of
    `forbidden_ids` are never chosen.

    An encoder-decoder needs the encoder's `memory`, one row per prompt. A long prompt of a model that sees through
    windows alone is read window by window, so that no more is held than a window. Gradients are off, and so is
    dropout, in whatever mode the model is.

    Raises ValueError, before any kernel runs, for a prompt that is empty, not made of ids of the vocabulary, or longer
    than the context, and for prompts whose lengths ask for different rotary frequencies (see `same_rotation`).
    """

    def __init__(
        self,
        transformer: Transformer,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        forbidden_ids: Sequence[int] = (),
        watch: Watch | None = None,
        memory: Memory | None = None,
    ):
        config = transformer.config
        self.transformer, self.watch, self.memory = transformer, watch or Watch({}), memory
        self.prompts = [checked(prompt, row, config) for row, prompt in enumerate(prompts)]
        self.forbidden_ids = forbidden_ids
        self.sampling = replace(sampling, seed=row_seeds(sampling, len(prompts)))
        totals = [total(len(prompt), config, sampling) for prompt in self.prompts]
        self.room = [end - len(prompt) for end, prompt in zip(totals, self.prompts, strict=True)]
        self.length = max(totals, default=0)
        if len(same_rotation(totals, config)) > 1:
            raise ValueError("the rotary frequencies depend on the length: decode prompts of different lengths apart")
        self._stopped: set[int] = set()

    def stop(self, row: int) -> None:
        """End a row after the token just given; for a caller who reads the text."""
        self._stopped.add(row)

    def __iter__(self) -> Iterator[Step]:
        self._stopped.clear()
        running = [row for row, room in enumerate(self.room) if room]
        held = list(range(len(self.prompts))) if self.watch.read_last else running
        if not held:
            return
        weight = self.transformer.embed.words
        chooser = Chooser(self.sampling, self.prompts, weight, self.forbidden_ids)
        cache, memory = Cache(self.transformer.config.masks), self._memory(held)
        ids, mask = pad_left([self.prompts[row] for row in held], weight.device)
        while held:
            x, here = self._prefill(ids, mask, cache, memory)
            tokens = self._choose(x, here, [held.index(row) for row in running], running, chooser) if running else ()
            yield Step(tuple(held), tokens)
            new = {token.row: token.id for token in tokens}
            running = [token.row for token in tokens if not (token.finish_reason or token.row in self._stopped)]
            kept = list(new) if self.watch.read_last else running
            if kept and kept != held:
                index = [held.index(row) for row in kept]
                cache.keep(index)
                memory = None if memory is None else memory.pick(index)
            held = kept
            ids, mask = torch.tensor([[new[row]] for row in held], device=weight.device), None

    def _memory(self, rows: list[int]) -> Memory | None:
        """The memory of some prompts, whose keys and values are kept from step to step."""
        if self.memory is None:
            return None
        return replace(self.memory.pick(rows), kept={})

    def _prefill(
        self, ids: Int[Tensor, "B T"], mask: Tensor | None, cache: Cache, memory: Memory | None
    ) -> tuple[Float[Tensor, "B t D"], Pass]:
        """The final stream of new columns; of the last chunk alone where a long prompt is read in several."""
        chunk = chunk_size(self.transformer.config) if mask is None else None
        *before, last = ids.split(chunk, dim=1) if chunk else (ids,)
        for part in before:
            self._read(part, None, cache, memory)
        return self._read(last, mask, cache, memory)

    @torch.no_grad()
    def _read(
        self, ids: Int[Tensor, "B T"], mask: Tensor | None, cache: Cache, memory: Memory | None
    ) -> tuple[Float[Tensor, "B T D"], Pass]:
        here = self.transformer.begin(ids, mask, cache, self.watch.looks, self.length, memory)
        here = replace(here, dropout=Dropout())
        return self.transformer.run(self.transformer.embed(ids, here), here), here

    @torch.no_grad()
    def _choose(
        self, x: Float[Tensor, "B T D"], here: Pass, index: list[int], rows: list[int], chooser: Chooser
    ) -> tuple[Token, ...]:
        """Unembed the last column of the rows that go on, and choose."""
        last = replace(here, place=pick(tail(here.place, x.shape[1] - 1), index))
        ids, logprobs = chooser(self.transformer.logits(x[index, -1:], last)[:, 0], rows)
        return tuple(
            Token(row, id, logprob, self._reason(row, id, chooser.made))
            for row, id, logprob in zip(rows, ids, logprobs, strict=True)
        )

    def _reason(self, row: int, id: int, made: int) -> FinishReason | None:
        if id in self.sampling.stop_ids:
            return "stop"
        return "length" if made == self.room[row] else None


def chunk_size(config: Config) -> int | None:
    """How many columns of a long prompt to read at once: the widest window, if every layer has one."""
    widths = [mask.width if isinstance(mask, Window) else None for mask in config.masks]
    return None if None in widths else max(width for width in widths if width is not None)


def total(prompt: int, config: Config, sampling: Sampling) -> int:
    """How long prompt and output may become together, in tokens."""
    return min(prompt + sampling.max_new_tokens, config.context_length)


def same_rotation(totals: Sequence[int], config: Config) -> list[list[int]]:
    """Rows in groups that may share a batch: all of them, unless the rotary frequencies depend on the total length."""
    groups: dict[object, list[int]] = {}
    for row, length in enumerate(totals):
        positions = config.positions
        key = frequencies(positions, config.d_head, length) if isinstance(positions, Rotary) else None
        groups.setdefault(key, []).append(row)
    return list(groups.values())

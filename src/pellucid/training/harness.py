"""A model as EleutherAI's lm_eval sees it, so that the standard harness runs its tasks on ours.

https://github.com/EleutherAI/lm-evaluation-harness; `lm_eval.simple_evaluate(model=language_model(...), tasks=[...])`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ..generation import Sampling, generate
from ..generation.decode import same_rotation
from ..model.transformer import Transformer
from ..text import TextError, Tokenizer
from .batch import NO_TARGET, Batch
from .cross_entropy import log_probabilities
from .objectives import final, stream, unembedded

MAX_NEW_TOKENS = 256  # where a task does not say
Request = Any  # lm_eval's Instance: its `args` are a context and a continuation, a text alone, or a context and options


class Scorer:
    """Answers lm_eval's three kinds of request, `rows` at a time; the answers do not depend on how many.

    Rows are padded behind, and nothing is read of the padding. `special`: control tokens that are written out in a text
    become their ids, as chat templates need; a task's own text can then hold them too. A context that is too long loses
    its beginning, as lm_eval has it; `shortened` counts how often.
    """

    def __init__(self, transformer: Transformer, tokenizer: Tokenizer, rows: int = 8, special: bool = False):
        super().__init__()
        if transformer.encoder is not None or not transformer.config.causal or transformer.unembed is None:
            raise ValueError("lm_eval scores models that predict each next token; this one does not")
        if rows < 1:
            raise ValueError(f"rows must be at least 1, got {rows}")
        self.transformer, self.tokenizer, self.rows, self.special = transformer.eval(), tokenizer, rows, special
        self.shortened = 0

    def loglikelihood(self, requests: Sequence[Request]) -> list[tuple[float, bool]]:
        """For each (context, continuation) the logarithm of the continuation's probability, and whether each of its
        tokens is the most probable one. An empty context is the token that begins a text."""
        return self._scored([self._pair(*request.args) for request in requests])

    def loglikelihood_rolling(self, requests: Sequence[Request]) -> list[float]:
        """The logarithm of the probability of each whole text, its first token predicted from the one that begins a
        text; of a long one in windows, the last of which has all the context there is room for."""
        found = []
        for request in requests:
            ids = self.tokenizer.encode(request.args[0], special=self.special, bos=False)
            windows = rolled(ids, self._beginning(), self.transformer.config.context_length)
            found.append(sum(score for score, _ in self._scored(list(windows))))
        return found

    def generate_until(self, requests: Sequence[Request]) -> list[str]:
        """What follows each context up to one of the options' `until` texts, the end of a text, or `max_gen_toks`
        tokens. Drawn only if the options say so (`do_sample`, `temperature`, `top_k`, `top_p`)."""
        texts = [""] * len(requests)
        groups: dict[Sampling, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(sampling_of(request.args[1], number), []).append(number)
        for sampling, numbers in groups.items():
            for first in range(0, len(numbers), self.rows):
                part = numbers[first : first + self.rows]
                prompts = [self._prompt(requests[number].args[0], sampling.max_new_tokens) for number in part]
                for number, found in zip(
                    part, generate(self.transformer, self.tokenizer, prompts, sampling), strict=True
                ):
                    texts[number] = found.text
        return texts

    @property
    def tokenizer_name(self) -> str:
        """What lm_eval tells apart the requests that it keeps by."""
        return f"pellucid-{self.tokenizer.vocab_size}-{'special' if self.special else 'plain'}"

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The source of the chat template, if it is wanted."""
        template = self.tokenizer.chat_template
        return template.source if chat_template and template is not None else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as the chat template writes it. Raises ValueError where control tokens would stay text."""
        if self.tokenizer.chat_template is None:
            raise ValueError("this model has no chat template")
        if not self.special:
            raise ValueError("a chat template writes control tokens: give language_model special=True")
        return self.tokenizer.chat_template.render(chat_history, add_generation_prompt=add_generation_prompt)

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """The ids of both, cut where they are when the two are one text; blanks that end the context go with what
        follows them."""
        kept = context.rstrip()
        context, continuation = kept, context[len(kept) :] + continuation
        if not context:
            ids = self.tokenizer.encode(continuation, special=self.special, bos=False)
            start = self._beginning()
            return ([start], ids[1:] if ids[:1] == [start] else ids)
        both = self.tokenizer.encode(context + continuation, special=self.special)
        size = len(self.tokenizer.encode(context, special=self.special))
        return both[:size], both[size:]

    def _beginning(self) -> int:
        """The token that begins a text, or else the one that ends it."""
        first = next((id for id in (self.tokenizer.bos_id, *self.tokenizer.eos_ids) if id is not None), None)
        if first is None:
            raise TextError("this tokenizer has no token that begins or ends a text, which an empty context stands for")
        return first

    def _prompt(self, context: str, new: int) -> list[int]:
        ids = self.tokenizer.encode(context, special=self.special) or [self._beginning()]
        room = self.transformer.config.context_length - new
        if room < 1:
            raise ValueError(f"{new} new tokens leave no room for a context: the model has {room + new} positions")
        self.shortened += len(ids) > room
        return ids[-room:]

    def _scored(self, pairs: list[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
        """Longest first, so that rows of like length share a batch, and one that is too large fails at once."""
        found = [(0.0, True)] * len(pairs)
        sizes = [len(context) + len(told) for context, told in pairs]
        # Rows whose rotary frequencies depend on the length, and differ, do not share a batch.
        for group in same_rotation(sizes, self.transformer.config):
            order = sorted(group, key=lambda number: -sizes[number])
            for first in range(0, len(order), self.rows):
                part = order[first : first + self.rows]
                for number, score in zip(part, self._batch([pairs[number] for number in part]), strict=True):
                    found[number] = score
        return found

    @torch.no_grad()
    def _batch(self, pairs: list[tuple[list[int], list[int]]]) -> Iterator[tuple[float, bool]]:
        rows = [self._row(*pair) for pair in pairs]
        width = max(len(ids) for ids, _ in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.int64)
        targets, mask = torch.full_like(ids, NO_TARGET), torch.zeros_like(ids, dtype=torch.bool)
        for row, (read, told) in enumerate(rows):
            ids[row, : len(read)], mask[row, : len(read)] = torch.tensor(read), True
            targets[row, len(read) - len(told) : len(read)] = torch.tensor(told, dtype=torch.int64)
        batch = Batch(ids, targets, mask).to(self.transformer.W_U.device)
        wanted = batch.targets != NO_TARGET
        x = final(self.transformer, *stream(self.transformer, batch), wanted)
        logs, best = log_probabilities(x, unembedded(self.transformer), batch.targets[wanted])
        counts = [len(told) for _, told in rows]
        for log, greedy in zip(logs.split(counts), best.split(counts), strict=True):
            yield log.double().sum().item(), bool(greedy.all())

    def _row(self, context: list[int], continuation: list[int]) -> tuple[list[int], list[int]]:
        """What is read, and what is predicted at the last of it."""
        length = self.transformer.config.context_length
        if len(continuation) > length:
            raise ValueError(f"a continuation has {len(continuation)} tokens, the context only {length}")
        ids = context + continuation
        self.shortened += len(ids) > length + 1
        return ids[-length - 1 :][:-1] or ids, continuation


def sampling_of(options: Mapping[str, Any], number: int) -> Sampling:
    """How a request's text is chosen; what is drawn depends on its number alone."""
    until = options.get("until") or ()
    until = (until,) if isinstance(until, str) else tuple(until)
    new = int(options.get("max_gen_toks", options.get("max_new_tokens", MAX_NEW_TOKENS)))
    if not options.get("do_sample", False):
        return Sampling(max_new_tokens=new, stop=until)
    drawn = {name: options[name] for name in ("temperature", "top_k", "top_p", "min_p") if name in options}
    return Sampling(**{"temperature": 1.0, **drawn}, max_new_tokens=new, stop=until, seed=number)


def rolled(ids: list[int], start: int, length: int) -> Iterator[tuple[list[int], list[int]]]:
    """(what is before, what is predicted): each id once, in windows of `length` predicted ids; the last window takes as
    much before it as there is room for."""
    for first in range(0, len(ids), length):
        told = ids[first : first + length]
        before = ids[max(0, first + len(told) - length - 1) : first] if first else [start]
        yield before, told


def language_model(transformer: Transformer, tokenizer: Tokenizer, rows: int = 8, special: bool = False) -> Any:
    """The model as lm_eval takes it; see `Scorer`. Raises ValueError without the package lm_eval."""
    try:
        from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError("the standard harness needs the package lm_eval: pip install 'pellucid[eval]'") from error

    class LanguageModel(Scorer, LM):
        """lm_eval's own class on top, for what it asks of every model."""

    return LanguageModel(transformer, tokenizer, rows, special)

"""Prompts in, the most probable texts out: beam search with words around it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..model.transformer import Transformer
from .beam import Beams, Hypothesis, beam_search
from .decode import FinishReason
from .line import Tokenizer
from .prompts import Prompt, memory_of, prompt_ids, with_ends, without_text


@dataclass(frozen=True)
class Found:
    """A continuation that beam search found. `score` ranks it: the sum `logprob`, weighed by its length (`Beams`)."""

    text: str
    ids: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    score: float
    logprob: float
    finish_reason: FinishReason


def search(
    transformer: Transformer,
    tokenizer: Tokenizer | None,
    prompts: Sequence[Prompt],
    beams: Beams | None = None,
    sources: Sequence[Prompt] | None = None,
) -> list[list[Found]]:
    """The best continuations of each prompt, best first; prompts, sources and errors as in `generate`."""
    beams = beams or Beams()
    beams = replace(beams, stop_ids=with_ends(beams.stop_ids, transformer, tokenizer))
    rows = [prompt_ids(prompt, row, transformer, tokenizer) for row, prompt in enumerate(prompts)]
    memory = memory_of(transformer, tokenizer, sources)
    forbidden = [*without_text(transformer, tokenizer), *beams.forbidden_ids]
    found = beam_search(transformer, rows, beams, forbidden, memory)
    stops = set(beams.stop_ids)
    return [
        [_found(row, each, stops, tokenizer, goes_on=memory is None) for each in hypotheses]
        for row, hypotheses in zip(rows, found, strict=True)
    ]


def _found(prompt: list[int], found: Hypothesis, stops: set[int], tokenizer: Tokenizer | None, goes_on: bool) -> Found:
    text = ""
    if tokenizer is not None:
        decoder = tokenizer.decoder(continued=goes_on)
        text = "".join([*(decoder.push(id) for id in found.ids if id not in stops), decoder.finish()])
    return Found(text, found.ids, tuple(prompt), found.score, found.logprob, found.finish_reason)

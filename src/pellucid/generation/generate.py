"""Prompts in, text out: whole, or piece by piece."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..model.transformer import Transformer
from .choose import row_seeds
from .decode import Decoding, FinishReason, Token, Watch, same_rotation, total
from .line import Line, Tokenizer
from .prompts import Prompt, memory_of, prompt_ids, with_ends, without_text
from .sampling import Sampling


@dataclass(frozen=True)
class Generation:
    """What was generated after one prompt.

    `ids` and `logprobs` hold every new token, a stop id among them; `text` ends before the stop string or the stop id.
    `logprobs` are natural logarithms: log-softmax of the model's own logits (padded vocabulary included), before any
    penalty or warp, in at least fp32. `finish_reason` is "stop" (a stop id or a stop string) or "length"
    (`max_new_tokens`, or the end of the context).
    """

    text: str
    ids: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    trace: object | None = None


@dataclass(frozen=True)
class Piece:
    """A new token, and the text that is certain since it came; the last one says why the text ended."""

    text: str
    id: int
    logprob: float
    finish_reason: FinishReason | None


def generate(
    transformer: Transformer,
    tokenizer: Tokenizer | None,
    prompts: Sequence[Prompt],
    sampling: Sampling | None = None,
    watch: Watch | None = None,
    sources: Sequence[Prompt] | None = None,
) -> list[Generation]:
    """Continue every prompt, each as if it were alone; one record per prompt, in their order.

    A prompt is a text or a list of ids. An empty one starts from the tokenizer's BOS token, which `prompt_ids` then
    shows. Without a tokenizer prompts are ids and `text` stays empty. `watch`: see `Decoding`. An
    encoder-decoder reads `sources`, one text or list of ids for each prompt.

    Raises ValueError for a prompt that is empty while there is no BOS token, too long for the context, or made of
    something else than text or ids.
    """
    sampling = sampling or Sampling()
    if isinstance(prompts, str):
        raise ValueError("prompts must be a list of texts or of lists of ids, got one text: put it in a list")
    ids = [prompt_ids(prompt, row, transformer, tokenizer) for row, prompt in enumerate(prompts)]
    seeds, forbidden = row_seeds(sampling, len(ids)), without_text(transformer, tokenizer)
    sampling = _with_eos(sampling, transformer, tokenizer)
    pieces: list[list[Piece]] = [[] for _ in ids]
    memory = memory_of(transformer, tokenizer, sources, watch.looks if watch else None)
    for rows in same_rotation([total(len(prompt), transformer.config, sampling) for prompt in ids], transformer.config):
        group = replace(sampling, seed=tuple(seeds[row] for row in rows))
        own = None if memory is None else memory.pick(rows)
        decoding = Decoding(transformer, [ids[row] for row in rows], group, forbidden, watch, own)
        for row, piece in _pieces(decoding, tokenizer):
            pieces[rows[row]].append(piece)
    return [_gathered(prompt, parts) for prompt, parts in zip(ids, pieces, strict=True)]


def stream(
    transformer: Transformer,
    tokenizer: Tokenizer | None,
    prompt: Prompt,
    sampling: Sampling | None = None,
    watch: Watch | None = None,
    source: Prompt | None = None,
) -> Iterator[Piece]:
    """Continue one prompt, piece by piece: the pieces' text, joined, is what `generate` gives.

    The input is checked when this is called; the model runs when pieces are asked for, and stops when they no longer
    are. No piece at all means that there was room for none ("length"). Arguments and errors as in `generate`.
    """
    ids = prompt_ids(prompt, 0, transformer, tokenizer)
    sampling = _with_eos(sampling or Sampling(), transformer, tokenizer)
    memory = memory_of(transformer, tokenizer, [source] if source is not None else None, watch.looks if watch else None)
    decoding = Decoding(transformer, [ids], sampling, without_text(transformer, tokenizer), watch, memory)
    return (piece for _, piece in _pieces(decoding, tokenizer))


def _with_eos(sampling: Sampling, transformer: Transformer, tokenizer: Tokenizer | None) -> Sampling:
    """The tokenizer's end ids beside the caller's own."""
    if tokenizer is None and sampling.stop:
        raise ValueError("stop strings need a tokenizer: give stop_ids")
    return replace(sampling, stop_ids=with_ends(sampling.stop_ids, transformer, tokenizer))


def _pieces(decoding: Decoding, tokenizer: Tokenizer | None) -> Iterator[tuple[int, Piece]]:
    """Every row's tokens with their text, in the order in which they come."""
    stops = decoding.sampling.stop
    # What a decoder writes goes on from its prompt; what it answers to an encoder's text stands alone.
    goes_on = decoding.memory is None
    lines = [Line(tokenizer.decoder(continued=goes_on) if tokenizer else None, stops) for _ in decoding.prompts]
    for step in decoding:
        for token in step.tokens:
            piece = _piece(token, lines[token.row], decoding.sampling.stop_ids)
            if piece.finish_reason:
                decoding.stop(token.row)
            yield token.row, piece


def _piece(token: Token, line: Line, stop_ids: Sequence[int]) -> Piece:
    text, reason = "" if token.id in stop_ids else line.push(token.id), token.finish_reason
    if reason:
        text += line.finish()
    if line.stopped:
        reason = "stop"
    return Piece(text, token.id, token.logprob, reason)


def _gathered(prompt: list[int], pieces: list[Piece]) -> Generation:
    return Generation(
        text="".join(piece.text for piece in pieces),
        ids=tuple(piece.id for piece in pieces),
        prompt_ids=tuple(prompt),
        logprobs=tuple(piece.logprob for piece in pieces),
        finish_reason=(pieces[-1].finish_reason if pieces else None) or "length",
    )

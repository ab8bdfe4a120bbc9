"""Making the report card: the texts every head is scored on, and what is scored on each."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from ..model.config import Learned
from ..model.transformer import Transformer
from ..text import Tokenizer
from .copying import copying, copying_eigenvalues
from .head_scores import measure, spread
from .head_targets import (
    Target,
    duplicate_token,
    first_token,
    induction,
    next_token,
    prefix_matching,
    previous_token,
    token_back,
)
from .head_texts import (
    COREFERENCE,
    PROSE,
    SYNTACTIC,
    begun,
    fixed_offset,
    labelled,
    pool_of,
    random_rows,
    repeated,
    tokens_of,
)
from .report_card import Measure, ReportCard, kinds_of
from .trace import Trace, trace

LENGTH = 25  # random tokens in a sequence that is repeated, as in Olsson et al. 2022
Progress = Callable[[int, int], object]  # told how many of how many parts of the card are made
POSITIONAL = ("previous token", "next token", "first token")


@torch.no_grad()
def report_card(
    transformer: Transformer,
    tokenizer: Tokenizer | None = None,
    start: int | None = None,
    sequences: int = 4,
    seed: int = 0,
    progress: Progress | None = None,
) -> ReportCard:
    """Score every head of a model, on a short prose and on random tokens, repeated and not, against chance.

    Texts begin with the token `start`: by default the tokenizer's BOS (or [CLS]), else its end of text, and none
    without a tokenizer. `sequences` rows of 25 random tokens are repeated twice, half as many four times; as many
    tokens without repetition make the control. Without a tokenizer, prose and labelled sentences are left out. An
    encoder-decoder's card is its decoder's, its encoder reading the same texts; `transformer.encoder` has a card of its
    own. `progress` is told of each part that is made. Raises ValueError where vocabulary or context are too small for
    anything to be repeated.
    """
    start = _start(tokenizer) if start is None else start
    config = transformer.config
    limit = config.context_length if isinstance(config.positions, Learned) else 4 * LENGTH + 1
    pool = pool_of(config.vocab_size, tokenizer, start)
    length = min(LENGTH, len(pool) // 2, (limit - 1) // 4)
    if length < 2:
        raise ValueError(f"nothing can be repeated with {len(pool)} tokens in {config.context_length} positions")
    rows = random_rows(pool, 2 * length, sequences, seed)
    parts = [_random(transformer, rows, start, named=tokenizer is None)]
    if tokenizer is not None:
        parts.append(_prose(transformer, tokenizer, start, limit))
        parts += [_relation(transformer, tokenizer, name, start) for name in (*SYNTACTIC, *COREFERENCE)]
    if _has_plain_logits(transformer):
        parts.append(_weights(transformer, seed))
    measures: list[Measure] = []
    for made, part in enumerate(parts, 1):
        measures += part
        if progress is not None:
            progress(made, len(parts))
    before = "no token before them" if start is None else f"token {start} before each text"
    note = f"{sequences} rows of {length} random tokens, {before}, seed {seed}"
    return ReportCard(tuple(measures), kinds_of(measures), note)


def _random(
    transformer: Transformer, rows: Int[Tensor, "rows twice"], start: int | None, named: bool
) -> Iterator[Measure]:
    """Random tokens: `rows` as they are make the control, their first halves are repeated."""
    half = rows[:, : rows.shape[1] // 2]
    control = _traced(transformer, begun(rows, start))
    twice = _traced(transformer, repeated(half, 2, start))
    targets = [induction(twice), duplicate_token(twice)]
    for score, without in zip(measure(twice, targets), measure(control, targets), strict=True):
        yield Measure(replace(score, control=without.score), "repeated", score.name)
    four = _traced(transformer, repeated(half[: (len(half) + 1) // 2], 4, start))
    yield Measure(measure(four, [prefix_matching(four)])[0], "repeated x 4")
    yield from _general(control, _positional(control), "random", named)
    if _has_plain_logits(transformer):
        yield Measure(copying(twice), "repeated")


def _prose(transformer: Transformer, tokenizer: Tokenizer, start: int | None, limit: int) -> Iterator[Measure]:
    ids = tokenizer.encode(PROSE)
    ids = ids if start is None or ids[0] == start else [start, *ids]
    found = _traced(transformer, torch.tensor([ids[:limit]]))
    targets = [*_positional(found), duplicate_token(found), induction(found)]
    yield from _general(found, targets, "prose", named=True)


def _general(found: Trace, targets: list[Target], text: str, named: bool) -> Iterator[Measure]:
    """Scores that any text has. Those by position name heads, on one of the texts.

    The control of the previous and the next token is the token beyond it, so that a head which looks at its
    neighbourhood as a whole is not named after one neighbour.
    """
    *scores, before, after = measure(found, [*targets, token_back(found, 2), token_back(found, -2)])
    beyond = {"previous token": before.score, "next token": after.score}
    for score in scores:
        if int(score.n.max()):  # in a causal model no query sees the next token
            kind = score.name if named and score.name in POSITIONAL else ""
            yield Measure(replace(score, control=beyond.get(score.name)), text, kind)
    for score in spread(found):
        yield Measure(score, text)


def _relation(transformer: Transformer, tokenizer: Tokenizer, relation: str, start: int | None) -> Iterator[Measure]:
    """Mean attention to labelled words, minus what the best fixed offset reaches on the same sentences."""
    ids, mask, keys = tokens_of(tokenizer, labelled(relation), start)
    baseline = fixed_offset(keys, mask)
    found = _traced(transformer, ids, mask)
    formula = f"mean attention from word to labelled word, minus {baseline:.3f} of the best fixed offset"
    score = measure(found, [Target(relation, formula, keys.to(found.ids.device))])[0]
    score = replace(score, score=score.score - baseline, null=score.null - baseline)
    yield Measure(score, "sentences", relation, 1 - baseline)


def _weights(transformer: Transformer, seed: int) -> Iterator[Measure]:
    """What the weights say without a text."""
    yield Measure(copying_eigenvalues(transformer, centred=True, seed=seed), "weights")


def _positional(found: Trace) -> list[Target]:
    return [previous_token(found), next_token(found), first_token(found)]


def _traced(transformer: Transformer, ids: Int[Tensor, "B T"], mask: Tensor | None = None) -> Trace:
    ids = ids.to(transformer.embed.words.device)
    mask = None if mask is None else mask.to(ids.device)
    source = None if transformer.encoder is None else trace(transformer.encoder, ids, mask)
    return trace(transformer, ids, mask, source=source)


def _start(tokenizer: Tokenizer | None) -> int | None:
    if tokenizer is None:
        return None
    return next((id for id in (tokenizer.bos_id, tokenizer.cls_id, *tokenizer.eos_ids) if id is not None), None)


def _has_plain_logits(transformer: Transformer) -> bool:
    return transformer.unembed is not None and transformer.head is None

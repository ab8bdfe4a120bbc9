"""What heads are scored on: random tokens, repeated or not, a short prose, and sentences with labelled words."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..text import Tokenizer

PROSE = (
    "The lighthouse keeper climbed the stairs every evening at six. He lit the lamp, wound the clock, and wrote one "
    "line in the book: the wind, the sea, and the ships that had passed. On clear nights he could count eleven of "
    "them. On the night of the great storm he counted none, and yet in the morning there was a small boat on the "
    "rocks, and in the boat sat a girl who asked him, quite calmly, whether this was the lighthouse. He said that it "
    "was. She said that she had come to read the book."
)

# (a word that is looked at) and [a word that should look at it, and stands after it]; distances differ on purpose.
_NOUNS = ("ship", "garden", "letter", "window", "river")
_NAMES = (("Anna", "she"), ("Tom", "he"), ("Mary", "she"), ("Paul", "he"))
_TEMPLATES = {
    "noun to determiner": (
        "(The) [{noun}] was old.",
        "We saw (the) very old [{noun}] again.",
        "They found (a) quiet and rather small [{noun}].",
    ),
    "noun to adjective": (
        "The (old) [{noun}] was there.",
        "She liked the (small) and quiet [{noun}] best.",
        "It was a (dark), cold and narrow [{noun}] then.",
    ),
    "object to verb": (
        "They (sold) [{noun}] after {noun}.",
        "He (painted) the [{noun}] in spring.",
        "The boy (remembered) that long and grey [{noun}].",
    ),
    "pronoun to name": (
        "({name}) said that [{pronoun}] would come.",
        "When ({name}) came home from work, [{pronoun}] was tired.",
        "({name}) closed the door of the house because [{pronoun}] was cold.",
    ),
    "name to the same name": (
        "({name}) met a friend, and then [{name}] went home.",
        "The book belongs to ({name}), so ask [{name}] for it.",
        "When ({name}) was young, the teachers often praised [{name}] for this.",
    ),
}
SYNTACTIC = ("noun to determiner", "noun to adjective", "object to verb")
COREFERENCE = ("pronoun to name", "name to the same name")
_LABEL = re.compile(r"([(\[])(.+?)([)\]])")


@dataclass(frozen=True)
class Labelled:
    """A sentence with two of its words, as (start, end) in characters: the one that looks, and the one looked at."""

    text: str
    query: tuple[int, int]
    target: tuple[int, int]


def labelled(relation: str) -> tuple[Labelled, ...]:
    """The sentences of one relation. Raises ValueError for a relation that there is not."""
    if relation not in _TEMPLATES:
        raise ValueError(f"the relations are {', '.join(_TEMPLATES)}; got {relation!r}")
    people = [{"name": name, "pronoun": pronoun} for name, pronoun in _NAMES]
    fillers = [{"noun": noun} for noun in _NOUNS] if relation in SYNTACTIC else people
    return tuple(parse(template.format(**words)) for template, words in product(_TEMPLATES[relation], fillers))


def parse(marked: str) -> Labelled:
    """A sentence whose words are marked: "(The) old [ship]": the ship should look at the article."""
    text, spans, last = "", {}, 0
    for found in _LABEL.finditer(marked):
        text += marked[last : found.start()]
        spans[found[1]] = (len(text), len(text) + len(found[2]))
        text += found[2]
        last = found.end()
    if set(spans) != {"(", "["}:
        raise ValueError(f"a labelled sentence marks one (word looked at) and one [word that looks], got {marked!r}")
    return Labelled(text + marked[last:], spans["["], spans["("])


def random_rows(pool: Int[Tensor, "ids"], length: int, rows: int, seed: int = 0) -> Int[Tensor, "rows length"]:
    """Rows of different random ids of a pool: no row holds one twice. Raises ValueError for too small a pool."""
    if length > len(pool):
        raise ValueError(f"{length} different tokens were asked for, and there are only {len(pool)}")
    draw = torch.Generator().manual_seed(seed)
    return torch.stack([pool[torch.randperm(len(pool), generator=draw)[:length]] for _ in range(rows)])


def repeated(rows: Int[Tensor, "rows length"], times: int, start: int | None) -> Int[Tensor, "rows T"]:
    """Each row `times` over, after the token `start` if there is one."""
    return begun(rows.repeat(1, times), start)


def begun(rows: Int[Tensor, "rows length"], start: int | None) -> Int[Tensor, "rows T"]:
    """The rows after the token `start`, if there is one."""
    return rows if start is None else torch.cat((torch.full_like(rows[:, :1], start), rows), dim=1)


def pool_of(vocab_size: int, tokenizer: Tokenizer | None, start: int | None) -> Int[Tensor, "ids"]:
    """The ids that random texts are made of: those with text that are no control tokens, the ends left out.

    Of learned vocabularies the first ids are the most common tokens and the last ones the rarest, so with a tokenizer
    the first and the last tenth are left out (Olsson et al. 2022 leave out both ends of their own counts).
    """
    if tokenizer is None:
        return torch.tensor([i for i in range(vocab_size) if i != start])
    bad = {*tokenizer.ids_without_text(vocab_size), *tokenizer.control_ids, start}
    ids = [i for i in range(vocab_size) if i not in bad]
    end = len(ids) // 10
    return torch.tensor(ids[end : len(ids) - end])


def tokens_of(
    tokenizer: Tokenizer, sentences: tuple[Labelled, ...], start: int | None
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"], Bool[Tensor, "B T T"]]:
    """Sentences as ids, padded on the right with a mask, and for each query the keys of the word that it should look
    at: the query is the last token of its word, the keys are all tokens of theirs."""
    encoded = [_encoded(tokenizer, sentence, start) for sentence in sentences]
    width = max(len(ids) for ids, _, _ in encoded)
    ids = torch.zeros(len(encoded), width, dtype=torch.long)
    mask, keys = torch.zeros_like(ids), torch.zeros(len(encoded), width, width, dtype=torch.bool)
    for row, (found, query, targets) in enumerate(encoded):
        ids[row, : len(found)], mask[row, : len(found)] = torch.tensor(found), 1
        keys[row, query, targets] = True
    return ids, mask, keys


def _encoded(tokenizer: Tokenizer, sentence: Labelled, start: int | None) -> tuple[list[int], int, list[int]]:
    ids, offsets = tokenizer.encode_with_offsets(sentence.text)
    if start is not None and ids[0] != start:
        ids, offsets = [start, *ids], [(0, 0), *offsets]
    return ids, list(_within(offsets, sentence.query))[-1], list(_within(offsets, sentence.target))


def _within(offsets: list[tuple[int, int]], span: tuple[int, int]) -> Iterator[int]:
    """The tokens that share a character with a span."""
    return (at for at, (first, end) in enumerate(offsets) if first < span[1] and end > span[0])


def fixed_offset(keys: Bool[Tensor, "B T T"], mask: Int[Tensor, "B T"]) -> float:
    """The best score that any fixed offset q - k reaches on labelled words: a baseline that knows no words.

    Over all offsets, the largest share of queries whose target holds the key at that offset (Clark et al. 2019).
    """
    where = (keys & mask.bool()[:, None, :]).nonzero()
    queries = keys.any(-1).sum()
    offsets = where[:, 1] - where[:, 2]
    return float(offsets.unique(return_counts=True)[1].max() / queries)

"""Pairs of texts made from templates, with words that are single tokens of a tokenizer.

Indirect object identification (Wang et al. 2022), greater-than (Hanna et al. 2023) and facts (Meng et al. 2022), in
sentences of our own.
"""

import random
from collections.abc import Iterable
from typing import Literal

from ..text import TextError, Tokenizer
from .pairs import Pair

NAMES = (
    "Mary", "John", "Anna", "Tom", "Paul", "Sarah", "James", "Emma", "David", "Alice", "Peter", "Laura", "Mark", "Jane",
    "Robert", "Helen", "Simon", "Kate", "Michael", "Lucy", "Daniel", "Rose", "George", "Maria", "Adam", "Julia",
)  # fmt: skip
_IOI = (
    "When {0} and {1} came to the {place}, {2} handed the {thing} to",
    "After {0} and {1} had left the {place}, {2} gave the {thing} to",
    "While {0} and {1} were waiting at the {place}, {2} showed the {thing} to",
    "Last week {0} and {1} met in the {place}, and {2} sold the {thing} to",
)
_PLACES = ("market", "school", "station", "garden", "office", "library", "harbor", "hospital")
_THINGS = ("book", "letter", "map", "key", "ring", "coat", "ticket", "camera")
_SPANS = ("war", "voyage", "siege", "project", "drought", "famine", "journey", "treaty")
_FACTS = (
    ("France", "Paris"), ("Germany", "Berlin"), ("Italy", "Rome"), ("Spain", "Madrid"), ("Japan", "Tokyo"),
    ("China", "Beijing"), ("Russia", "Moscow"), ("Egypt", "Cairo"), ("Greece", "Athens"), ("Austria", "Vienna"),
    ("England", "London"), ("Cuba", "Havana"), ("Poland", "Warsaw"), ("Ireland", "Dublin"), ("Iran", "Tehran"),
    ("Iraq", "Baghdad"), ("Canada", "Ottawa"), ("Norway", "Oslo"), ("Portugal", "Lisbon"), ("Turkey", "Ankara"),
)  # fmt: skip
_CAPITAL = "The capital city of {0} is called"


def ioi(
    tokenizer: Tokenizer, n: int = 16, seed: int = 0, corruption: Literal["flip", "other"] = "flip"
) -> tuple[Pair, ...]:
    """ "When Mary and John came to the market, John handed the book to" -> " Mary", not " John".

    Names stand in both orders. The corrupted text repeats the other of the two names ("flip": then the answer is the
    other one) or a third one ("other": then either may follow). Raises ValueError where the tokenizer has too few names
    of one token.
    """
    if corruption not in ("flip", "other"):
        raise ValueError(f"a text is corrupted by 'flip' or by 'other', got {corruption!r}")
    names = _single(tokenizer, NAMES, 3, "names")
    places, things = _single(tokenizer, _PLACES, 1, "places"), _single(tokenizer, _THINGS, 1, "things")
    draw, made = random.Random(seed), []
    for _ in range(n):
        subject, receiver, third = draw.sample(names, 3)
        both = draw.sample((subject, receiver), 2)
        text, words = draw.choice(_IOI), {"place": draw.choice(places), "thing": draw.choice(things)}
        again = receiver if corruption == "flip" else third
        texts = [text.format(*both, name, **words) for name in (subject, again)]
        made.append(Pair(texts[0], texts[1], (f" {receiver}",), (f" {subject}",)))
    return tuple(made)


def greater_than(tokenizer: Tokenizer, n: int = 16, seed: int = 0) -> tuple[Pair, ...]:
    """ "The war lasted from the year 1732 to the year 17" -> a number above 32; corrupted: the year 1701.

    Where the tokenizer has no tokens of two digits, of the digit alone: "... from the year 1735 to the year 17" -> a
    digit above 3. Raises ValueError where it has neither.
    """
    spans, draw, made = _single(tokenizer, _SPANS, 1, "words"), random.Random(seed), []
    digits = 2 if _splits(tokenizer, 2) else 1
    if digits == 1 and not _splits(tokenizer, 1):
        raise ValueError("the tokenizer cuts a year neither into twos of digits nor into digits: no such pairs")
    for _ in range(n):
        text, century = f"The {draw.choice(spans)} lasted from the year {{0}} to the year {{1}}", draw.randint(11, 17)
        numbers = [f"{i:0{digits}}" for i in range(10**digits)]
        at = draw.randint(2, len(numbers) - 2)
        tail = "" if digits == 2 else str(draw.randint(1, 9))
        texts = [text.format(f"{century}{numbers[i]}{tail}", century) for i in (at, 1)]
        made.append(Pair(texts[0], texts[1], tuple(numbers[at + 1 :]), tuple(numbers[: at + 1])))
    return tuple(made)


def facts(tokenizer: Tokenizer, n: int = 16, seed: int = 0) -> tuple[Pair, ...]:
    """ "The capital city of France is called" -> " Paris"; corrupted: of another country, whose capital it is not."""
    known = [
        (country, city) for country, city in _FACTS if _is_single(tokenizer, country) and _is_single(tokenizer, city)
    ]
    if len(known) < 2:
        raise ValueError(f"the tokenizer has {len(known)} countries and capitals of one token, 2 are needed")
    draw, made = random.Random(seed), []
    for _ in range(n):
        (country, city), (other, town) = draw.sample(known, 2)
        made.append(Pair(_CAPITAL.format(country), _CAPITAL.format(other), (f" {city}",), (f" {town}",)))
    return tuple(made)


def _single(tokenizer: Tokenizer, words: Iterable[str], least: int, what: str) -> list[str]:
    found = [word for word in words if _is_single(tokenizer, word)]
    if len(found) < least:
        raise ValueError(f"the tokenizer has {len(found)} of the {what} as one token, {least} are needed")
    return found


def _is_single(tokenizer: Tokenizer, word: str) -> bool:
    """Whether a word within a text is one token."""
    try:
        tokenizer.id_of(f" {word}")
    except TextError:
        return False
    return True


def _splits(tokenizer: Tokenizer, digits: int) -> bool:
    """Whether a year's last digits are tokens of their own after its century, whatever they are."""
    try:
        tails = [[tokenizer.id_of(f"{i:0{digits}}")] for i in range(10**digits)]
    except TextError:
        return False
    ends = "" if digits == 2 else "5"
    heads = [tokenizer.encode(f"the year {century}", bos=False) for century in range(11, 18)]
    years = [
        tokenizer.encode(f"the year {century}{i:0{digits}}{ends}", bos=False)
        for century in range(11, 18)
        for i in range(10**digits)
    ]
    wanted = [[*head, *tail] for head in heads for tail in tails]
    return all(year[: len(want)] == want for year, want in zip(years, wanted, strict=True))

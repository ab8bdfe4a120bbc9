"""Pairs of texts: what aligns, what does not and how that is shown, and pairs made from templates."""

import re

import pytest
import torch

import pellucid as pl
from pellucid.inside.metrics import logit
from pellucid.inside.pair_texts import NAMES, facts, greater_than, ioi
from pellucid.inside.pairs import Pair, aligned
from pellucid.inside.trace import trace
from pellucid.text import Tokenizer
from tiny import tiny_gpt2


def words_as_tokens(path, digits: str) -> Tokenizer:
    """Words with the blank before them as tokens; years cut as `digits` says; other text in letters."""
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Raw

    texts = "The capital city of is called When and came to the market , handed book After had left station gave map"
    texts += " While were waiting at office showed key Last week met in garden sold ring war lasted from year voyage"
    texts += " France Paris Germany Berlin Italy Rome Mary John Anna Tom"
    vocab = {letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = []
    for word in ["Ġ" + word for word in texts.split()] + ["The", "When", "After", "While", "Last"]:
        for end in range(2, len(word) + 1):
            merges.append((word[: end - 1], word[end - 1]))
            vocab.setdefault(word[:end], len(vocab))
    for i in range(100) if digits == r"\d\d" else ():
        merges.append((str(i // 10), str(i % 10)))
        vocab[f"{i:02}"] = len(vocab)
    raw = Raw(models.BPE(vocab, list(dict.fromkeys(merges))))
    cut = pre_tokenizers.Split(Regex(digits), "isolated")
    raw.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    raw.decoder = decoders.ByteLevel()
    raw.save(str(path / "tokenizer.json"))
    return Tokenizer.from_json(path / "tokenizer.json")


@pytest.fixture(scope="module")
def twos(tmp_path_factory):
    return words_as_tokens(tmp_path_factory.mktemp("twos"), r"\d\d")


@pytest.fixture(scope="module")
def ones(tmp_path_factory):
    return words_as_tokens(tmp_path_factory.mktemp("ones"), r"\d")


def test_rows_of_one_width_are_ready_for_tracing(twos):
    texts = [Pair("The city of France is", "The city of Italy is"), ("Mary and", "John and")]
    found = aligned(texts[:1], twos)
    assert found.mask is None
    both = aligned([texts[0], ("The map", "The key")], twos)
    assert both.clean.shape == both.corrupted.shape == (2, 5)
    assert both.mask is not None
    assert both.mask.tolist() == [[1] * 5, [1, 1, 0, 0, 0]]
    assert both.differ.tolist() == [[False, False, False, True, False], [False, True, False, False, False]]
    assert both.first == [3, 1]
    assert both.table().rows[1] == (1, 2, "1", "␣map", "␣key", "")
    model = tiny_gpt2(vocab_size=twos.vocab_size)
    clean, corrupted = both.traces(model)
    for row, (one, other) in enumerate((pair.clean, pair.corrupted) for pair in both.pairs):
        for seen, text in ((clean, one), (corrupted, other)):
            alone = trace(model, torch.tensor([twos.encode(text)]))
            torch.testing.assert_close(seen.by_position("2.stream", row), alone["2.stream"][0])
    patched = corrupted.edit(pl.patch("0.stream", clean, row=0))
    torch.testing.assert_close(patched["logits"][0], clean["logits"][0])


def test_a_misfit_is_drawn(twos):
    with pytest.raises(ValueError, match="do not align") as caught:
        aligned([("The key", "The map"), ("The city of France is", "The city of Portugal is")], twos)
    lines = str(caught.value).splitlines()
    assert lines[0] == "the texts of pair 1 do not align: 5 tokens and 12, from token 3 on"
    assert lines[1].split(" | ") == ["  clean      The", "␣city", "␣of", "␣France", "␣is"]
    assert lines[2].split(" | ")[:3] == ["  corrupted  The", "␣city", "␣of"]
    assert lines[3].index("^") == lines[1].index("␣France") == lines[2].index("␣P")
    long = "The city of " * 5 + "France", "The city of " * 5 + "Norway"
    with pytest.raises(ValueError, match="do not align") as caught:
        aligned([long], twos)
    lines = str(caught.value).splitlines()
    assert lines[1].startswith("  clean      ... | ")
    assert lines[3].index("^") == lines[1].index("␣France")


def test_pairs_that_are_none(twos):
    with pytest.raises(ValueError, match="there are no pairs"):
        aligned([], twos)
    with pytest.raises(ValueError, match="pair 0 are the same"):
        aligned([("The key", "The key")], twos)


@pytest.mark.parametrize("corruption", ["flip", "other"])
def test_indirect_objects(twos, corruption):
    made = ioi(twos, 12, seed=1, corruption=corruption)
    found = aligned(made, twos)
    assert (found.differ.sum(1) == 1).all()
    orders = set()
    for pair, first in zip(made, found.first, strict=True):
        (answer,), (other,) = pair.answers, pair.others
        names = re.findall("|".join(NAMES), pair.clean)
        assert sorted(names) == sorted([answer[1:], other[1:], other[1:]])
        repeated = re.findall("|".join(NAMES), pair.corrupted)[2]
        assert (repeated == answer[1:]) == (corruption == "flip")
        assert repeated != other[1:]
        orders.add(names[0] == names[2])
        assert first > 4
    assert orders == {True, False}
    assert made == ioi(twos, 12, seed=1, corruption=corruption)
    assert made != ioi(twos, 12, seed=2, corruption=corruption)


@pytest.mark.parametrize("digits", [1, 2])
def test_greater_than(twos, ones, digits):
    tokenizer = twos if digits == 2 else ones
    made = greater_than(tokenizer, 12, seed=3)
    found = aligned(made, tokenizer)
    assert (found.differ.sum(1) == 1).all()
    for pair in made:
        begin, century = re.fullmatch(r"The \w+ lasted from the year (\d{4}) to the year (\d\d)", pair.clean).groups()
        assert begin.startswith(century)
        own = int(begin[2 : 2 + digits])
        assert [int(each) for each in pair.answers] == list(range(own + 1, 10**digits))
        assert [int(each) for each in pair.others] == list(range(own + 1))
        assert f"year {century}{1:0{digits}}" in pair.corrupted
        text = tokenizer.encode(pair.clean)
        for each in (pair.answers[0], pair.others[-1]):
            assert tokenizer.encode(pair.clean + each) == [*text, tokenizer.id_of(each)]


def test_capitals(twos):
    made = facts(twos, 8)
    assert (aligned(made, twos).differ.sum(1) == 1).all()
    cities = {"France": " Paris", "Germany": " Berlin", "Italy": " Rome"}
    for pair in made:
        for text, (city,) in ((pair.clean, pair.answers), (pair.corrupted, pair.others)):
            assert cities[re.search("of (.+) is", text)[1]] == city


def test_words_of_several_tokens_are_left_out_and_missed(tmp_path_factory, twos):
    names = {each[1:] for pair in ioi(twos, 40) for each in (*pair.answers, *pair.others)}
    assert names == {"Mary", "John", "Anna", "Tom"}
    from tokenizers import Tokenizer as Raw
    from tokenizers import models, pre_tokenizers

    raw = Raw(models.BPE({letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    path = tmp_path_factory.mktemp("letters") / "tokenizer.json"
    raw.save(str(path))
    letters = Tokenizer.from_json(path)
    for make in (ioi, greater_than, facts):
        with pytest.raises(ValueError, match=r"one token, \d (is|are) needed"):
            make(letters)


def test_a_pairs_metric_reads_its_answers(twos):
    model = tiny_gpt2(vocab_size=twos.vocab_size, context_length=32)
    (pair,), (year,) = ioi(twos, 1), greater_than(twos, 1)
    seen = trace(model, torch.tensor([twos.encode(pair.clean)]), tokenizer=twos)
    expected = logit(pair.answers[0], minus=pair.others[0]).of(seen)
    assert torch.equal(pair.metric().of(seen), expected)
    texts = aligned([pair, *ioi(twos, 3, seed=5)], twos)
    clean, _ = texts.traces(model)
    alone = [
        each.metric().of(trace(model, torch.tensor([twos.encode(each.clean)]), tokenizer=twos)) for each in texts.pairs
    ]
    torch.testing.assert_close(texts.measure(clean), torch.cat(alone))
    seen = trace(model, torch.tensor([twos.encode(year.clean)]), tokenizer=twos)
    chances = seen["logits"][0, -1].softmax(-1)
    above, below = (sum(float(chances[twos.id_of(each)]) for each in side) for side in (year.answers, year.others))
    assert float(year.metric().of(seen)) == pytest.approx(above - below)
    with pytest.raises(ValueError, match="no answers"):
        Pair("a", "b").metric()

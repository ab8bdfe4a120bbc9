"""The report card: its texts, its thresholds, and the kinds it names."""

import math
from dataclasses import replace
from statistics import NormalDist

import pytest
import torch

from pellucid.inside.circuit_by_hand import START, induction_circuit
from pellucid.inside.grading import report_card
from pellucid.inside.head_scores import HeadScores
from pellucid.inside.head_texts import (
    COREFERENCE,
    SYNTACTIC,
    fixed_offset,
    labelled,
    parse,
    pool_of,
    random_rows,
    repeated,
    tokens_of,
)
from pellucid.inside.report_card import Measure, kinds_of
from pellucid.inside.trace import trace
from pellucid.model.config import Bidirectional, Config, Init
from pellucid.text import Tokenizer
from tiny import build, tiny_gpt2, with_encoder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    """Characters as tokens, so that every word is several."""
    from tokenizers import Tokenizer as Raw
    from tokenizers import decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Raw(models.BPE(vocab={"<start>": 0} | {letter: i for i, letter in enumerate(alphabet, 1)}, merges=[]))
    raw.add_special_tokens(["<start>"])
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    path = tmp_path_factory.mktemp("letters") / "tokenizer.json"
    raw.save(str(path))
    return Tokenizer.from_json(path)


# --- Texts ---


def test_labels_are_taken_out_and_point_at_their_words():
    found = parse("We saw (the) very old [ship] again.")
    assert found.text == "We saw the very old ship again."
    assert found.text[slice(*found.target)] == "the"
    assert found.text[slice(*found.query)] == "ship"
    for wrong in ("no labels", "(one) only", "only [one]"):
        with pytest.raises(ValueError, match=r"marks one \(word looked at\)"):
            parse(wrong)


@pytest.mark.parametrize("relation", [*SYNTACTIC, *COREFERENCE])
def test_sentences_of_a_relation(relation, tokenizer):
    """The looked-at word comes first, at distances of which no single one is the most."""
    sentences = labelled(relation)
    assert len({sentence.text for sentence in sentences}) == len(sentences) >= 12
    assert all(sentence.target[1] <= sentence.query[0] for sentence in sentences)
    apart = [len(each.text[each.target[0] : each.query[0]].split()) for each in sentences]
    assert max(apart.count(distance) for distance in apart) <= len(sentences) / 3
    ids, mask, keys = tokens_of(tokenizer, sentences, 0)
    assert keys.any(-1).sum(-1).tolist() == [1] * len(sentences)
    for row, sentence in enumerate(sentences):
        (query, *_), targets = keys[row].nonzero().T.tolist()
        assert int(ids[row, 0]) == 0
        assert tokenizer.decode(ids[row, targets].tolist()) == sentence.text[slice(*sentence.target)]
        assert tokenizer.decode(ids[row, 1 : query + 1].tolist()) == sentence.text[: sentence.query[1]]
        assert int(mask[row].sum()) == len(sentence.text) + 1


def test_an_unknown_relation_is_refused():
    with pytest.raises(ValueError, match=r"the relations are noun to determiner.*got 'verb'"):
        labelled("verb")


def test_the_best_fixed_offset():
    keys = torch.zeros(3, 6, 6, dtype=torch.bool)
    keys[0, 5, [3, 4]], keys[1, 4, [2]], keys[2, 3, [0]] = True, True, True
    assert fixed_offset(keys, torch.ones(3, 6, dtype=torch.long)) == pytest.approx(2 / 3)  # two back, twice in three


def test_random_rows_repeat_nothing_by_accident(tokenizer):
    pool = pool_of(260, tokenizer, start=7)
    assert set(pool.tolist()) <= set(range(1, 257)) - {7}
    assert len(pool) == 255 - 2 * 25  # the letters but the start, less both tenths
    rows = random_rows(pool, 25, 4)
    assert all(len(set(row)) == 25 for row in rows.tolist())
    assert torch.equal(rows, random_rows(pool, 25, 4))
    assert not torch.equal(rows, random_rows(pool, 25, 4, seed=1))
    whole = repeated(rows, 2, 7)
    assert whole[:, 0].tolist() == [7] * 4
    assert torch.equal(whole[:, 1:26], whole[:, 26:])
    assert torch.equal(repeated(rows, 2, None), whole[:, 1:])
    with pytest.raises(ValueError, match="300 different tokens were asked for, and there are only 205"):
        random_rows(pool, 300, 1)


# --- Thresholds and kinds ---


def scores(name: str, *by_head: float, null: float = 0.1, sd: float = 0.02) -> HeadScores:
    score = torch.tensor([by_head], dtype=torch.float64)
    same = torch.ones_like(score)
    return HeadScores(name, "", score, same * null, same * sd, same.long())


def test_the_threshold_comes_from_the_null():
    found = Measure(scores("a", 0.5, 0.1, 0.1, 0.1), "", "a")
    z = NormalDist().inv_cdf(1 - 0.01 / 4)
    assert found.threshold == pytest.approx(0.1 + z * 0.02, abs=1e-12)
    assert float(found.excess[0, 0]) == pytest.approx((0.5 - found.threshold) / (1 - found.threshold), abs=1e-12)
    assert Measure(scores("a", 0.5, null=-0.3), "", "a").threshold == 0.0


def test_a_head_is_named_after_what_it_passes_by_most():
    measures = (
        Measure(scores("a", 0.9, 0.2, 0.1, 0.1, math.nan), "", "a"),
        Measure(scores("b", 0.3, 0.4, 0.1, 0.1, 0.9), "", "b"),
        Measure(scores("first token", 1.0, 0.9, 0.8, 0.1, 0.0), "", "first token"),
        Measure(scores("c", 1.0, 1.0, 1.0, 1.0, 1.0), ""),
    )
    assert kinds_of(measures) == (("a", "b", "first token", "", "b"),)


def test_what_the_control_run_has_as_well_counts_for_nothing():
    found = scores("a", 0.9, 0.9)
    control = torch.tensor([[0.1, 0.9]], dtype=torch.float64)
    assert kinds_of([Measure(replace(found, control=control), "", "a")]) == (("a", ""),)


# --- Whole cards ---


def test_a_head_that_looks_at_its_neighbourhood_is_no_previous_token_head():
    card = report_card(tiny_gpt2(vocab_size=60, context_length=64))
    found = next(each for each in card.measures if each.kind == "previous token")
    ids = repeated(random_rows(pool_of(60, None, None), 30, 4), 1, None)
    whole = trace(tiny_gpt2(vocab_size=60, context_length=64), ids)
    for layer in range(2):
        pattern = whole[f"{layer}.attention.pattern"]
        expected = torch.stack([pattern[:, :, q, q - 2] for q in range(2, 30)]).mean((0, 1))
        torch.testing.assert_close(found.scores.control[layer], expected)
    even = replace(found.scores, score=found.scores.null + 0.4, control=found.scores.null + 0.4)
    assert float(Measure(even, "", "previous token").excess.max()) < 0


@pytest.mark.slow
def test_a_card_with_and_without_words(tokenizer):
    model = tiny_gpt2(dtype=torch.float32, vocab_size=260, context_length=600)
    card = report_card(model, tokenizer, start=0)
    table = card.table()
    assert len(table) == 8
    for name in ("induction, repeated", "previous token, prose", "first token, random", "object to verb, sentences"):
        assert name in table.columns
    assert "next token, prose" not in table.columns  # a causal model's queries see none
    assert card.scores("induction", "prose").name == "induction"
    assert int(card.scores("induction").n[0, 0]) == 4 * 25
    assert int(card.scores("prefix matching (+1)").n[0, 0]) == 2 * 3 * 25
    assert card.nulls().rows[0][:2] == ("induction", "repeated")
    data = card.to_json()
    assert len(data["scores"]) == len(card.measures)
    assert data["scores"][0]["threshold"] == card.measures[0].threshold
    with pytest.raises(ValueError, match="got 'inductive'"):
        card.scores("inductive")
    with pytest.raises(ValueError, match="got 'rest'"):
        card.of("rest")
    without = report_card(model)
    assert not any("prose" in name or "sentences" in name for name in without.table().columns)
    assert "no token before them" in without.note


@pytest.mark.slow
def test_cards_of_encoders_decoders_and_small_contexts():
    both_ways = build(Config(60, 64, 2, 24, 3, masks=(Bidirectional(),), head=None, init=Init(0.4)))
    assert "next token, random" in report_card(both_ways).table().columns
    base = Config(60, 64, 2, 24, 3, init=Init(0.4))
    pair = build(with_encoder(base))
    assert len(report_card(pair).table()) == 6
    assert len(report_card(pair.encoder).table()) == 6
    small = build(replace(base, context_length=16))
    assert "4 rows of 3 random tokens" in report_card(small).note
    with pytest.raises(ValueError, match="nothing can be repeated with 60 tokens in 8 positions"):
        report_card(build(replace(base, context_length=8)))


def test_a_card_does_not_change_the_model_and_comes_out_the_same():
    model = induction_circuit()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    first, second = (report_card(model, start=START) for _ in range(2))
    assert str(first) == str(second)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())

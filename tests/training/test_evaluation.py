"""Scores of texts against the formula, token by token."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from pellucid.model.config import Bidirectional
from pellucid.text import Tokenizer
from pellucid.training.evaluation import evaluate, windows
from pellucid.training.vocabulary import train_bpe, train_characters, write_files

LINES = ["the cat sat on the mat", "where the dog was", "é ü – 3.14"]


@pytest.fixture(scope="module")
def characters(tmp_path_factory) -> Tokenizer:
    return write_files(tmp_path_factory.mktemp("characters"), train_characters(LINES))


@pytest.fixture(scope="module")
def model():
    return tiny.tiny_gpt2()


@settings(max_examples=15)
@given(st.integers(2, 16), st.integers(1, 15), st.integers(2, 40))
def test_each_token_is_scored_once_with_enough_before_it(length, stride, count):
    stride = min(stride, length - 1)
    scored = []
    for batch in windows(list(range(count)), length, stride):
        assert batch.ids.shape[1] < length
        for column in (batch.targets[0] >= 0).nonzero()[:, 0].tolist():
            token = int(batch.targets[0, column])
            assert column + 1 >= min(length - stride, token)
            assert int(batch.ids[0, column]) == token - 1
            scored.append(token)
    assert scored == list(range(1, count))


@pytest.mark.parametrize(("length", "stride"), [(16, 8), (7, 3), (5, 1), (16, 15)])
def test_the_numbers_are_those_of_the_formula(model, characters, length, stride):
    text, told = LINES[0] * 2, []
    found = evaluate(model, characters, text, length, stride, told.append)
    ids, nats, scored, start = characters.encode(text), 0.0, 1, 0
    while scored < len(ids):
        window = torch.tensor([ids[start : start + length]])
        logs = model(window).log_softmax(-1)
        for at in range(scored, min(start + length, len(ids))):
            nats -= logs[0, at - start - 1, ids[at]].item()
        scored, start = min(start + length, len(ids)), start + stride
    assert found.tokens == len(text) - 1
    assert (found.bytes, found.characters) == (len(text) - 1, len(text) - 1)
    assert found.nats == pytest.approx(nats, rel=1e-12)
    assert found.loss == pytest.approx(nats / (len(text) - 1), rel=1e-12)
    assert found.perplexity == pytest.approx(math.exp(nats / (len(text) - 1)), rel=1e-12)
    assert found.bits_per_byte == pytest.approx(nats / (len(text) - 1) / math.log(2), rel=1e-12)
    assert 0.5 * len(text) < sum(told) <= len(text)


def test_texts_are_scored_by_themselves(model, characters):
    together = evaluate(model, characters, [*LINES, "", "x"[:0]])
    alone = [evaluate(model, characters, line) for line in LINES]
    for name in ("nats", "tokens", "bytes", "characters"):
        assert getattr(together, name) == pytest.approx(sum(getattr(each, name) for each in alone), rel=1e-12)
    assert alone[2].characters == len(LINES[2]) - 1
    assert alone[2].bytes == len(LINES[2].encode()) - 2  # the first character, é, has two bytes
    assert together.to_json()["bits_per_character"] == together.bits_per_character


def test_bytes_are_counted_where_a_token_is_part_of_a_character(tmp_path):
    words = write_files(tmp_path, train_bpe(["a"], 300))
    model = tiny.tiny_gpt2(vocab_size=300)
    found = evaluate(model, words, "éa")
    assert (found.tokens, found.bytes, found.characters) == (2, 2, 2)


def test_a_models_mode_stays_as_it_was(model, characters):
    model.train()
    assert evaluate(model, characters, LINES[0]) == evaluate(model, characters, LINES[0])
    assert model.training
    model.eval()


@pytest.mark.parametrize(
    ("changes", "text", "numbers", "said"),
    [
        ({}, "t", {}, "at least two tokens"),
        ({}, [], {}, "at least two tokens"),
        ({}, "the", {"length": 17}, "length must be from 2 to the context of 16"),
        ({}, "the", {"length": 1}, "length must be from 2"),
        ({}, "the", {"length": 4, "stride": 4}, "stride must be from 1 to 3"),
        ({"masks": (Bidirectional(),)}, "the", {}, "predicts each next token"),
        ({"head": None}, "the", {}, "predicts each next token"),
    ],
)
def test_what_cannot_be_scored_is_told(characters, changes, text, numbers, said):
    with pytest.raises(ValueError, match=said):
        evaluate(tiny.tiny_gpt2(**changes), characters, text, **numbers)

"""Attention's numbers: scaling, saturation, masks and cost, against formulas, autograd and torch's own count."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from pellucid.lessons import attention
from pellucid.lessons.attention import causal_mask, causal_mask_on, cost, entropy, probabilities, slope
from pellucid.lessons.small import random_model
from pellucid.model.config import Bidirectional
from tiny import build, configs, random_ids, tiny_gpt2, traced

SCORES = st.lists(st.floats(-20, 20), min_size=1, max_size=6)


def test_scores_vary_by_d_k_and_by_1_once_scaled():
    (table,) = attention.scaling().tables
    assert table.column("d_k") == (4, 16, 64, 256, 1024)
    for width, variance, error, scaled, scaled_error in table:
        assert abs(variance - width) < 4 * error
        assert abs(scaled - 1) < 4 * scaled_error
        # the error is that of a sample variance: kurtosis of a sum of d products of normals is 3 + 6 / d
        assert error == pytest.approx(width * math.sqrt((3 + 6 / width - 1) / 20000))


def test_unscaled_scores_saturate_the_softmax():
    (table,) = attention.saturation(samples=300).tables
    largest, scaled, spread, scaled_spread, gradient, scaled_gradient = (
        [row[at] for row in table] for at in range(1, 7)
    )
    assert largest == sorted(largest)
    assert largest[-1] > 0.9
    assert spread == sorted(spread, reverse=True)
    assert spread[-1] < 0.15 < 2 < min(scaled_spread)
    assert gradient[-1] < scaled_gradient[-1] / 4
    assert max(scaled) < 0.3


@given(SCORES)
def test_entropy_and_slope_of_a_softmax(scores):
    raw = torch.tensor(scores, dtype=torch.float64)
    p = raw.softmax(-1)
    jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), raw)
    assert float(slope(p)) == pytest.approx(float(jacobian.norm()), abs=1e-7)
    q = np.exp(scores - np.max(scores)) / np.exp(scores - np.max(scores)).sum()
    assert float(entropy(p)) == pytest.approx(-sum(x * math.log(x) for x in q if x), abs=1e-12)


@given(SCORES, st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([1, 16, 64]))
def test_probabilities_are_their_formula(scores, temperature, d_head):
    x = np.array(scores) / (temperature * math.sqrt(d_head))
    expected = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
    found = probabilities(torch.tensor(scores, dtype=torch.float64), temperature, d_head)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_scores_as_probabilities_in_every_way():
    table, spread = attention.softmax((16, 8, 0, -8), d_head=64).tables
    for name, x in {
        "T = 1": (2, 1, 0, -1),
        "T = 0.5": (4, 2, 0, -2),
        "T = 2": (1, 0.5, 0, -0.5),
        "unscaled": (16, 8, 0, -8),
        "largest to 0": (0, 1, 0, -1),
    }.items():
        p = np.exp(x) / np.exp(x).sum()
        np.testing.assert_allclose(table.column(name), p)
        row = next(row for row in spread if row[0] == name)
        h = -(p * np.log(p)).sum()
        assert row[1:] == (pytest.approx(h), pytest.approx(np.exp(h)), pytest.approx(p.max()))


def test_scores_of_a_model_give_its_own_pattern():
    found = traced(tiny_gpt2(), random_ids(1, 6))
    table, _ = attention.softmax_on(found).tables
    head = int(table.title.partition("head ")[2].partition(",")[0])
    assert table.title.startswith("1.attention")
    np.testing.assert_allclose(table.column("T = 1"), found["1.attention.pattern"][0, head, -1], rtol=1e-9)
    q, k = found["1.attention.query"][0, -1, head], found["1.attention.key"][0, :, head]
    np.testing.assert_allclose(table.column("q.k"), k @ q, rtol=1e-9)
    spread = entropy(found["1.attention.pattern"][0, :, -1])
    assert head == int(spread.argmax())


def test_what_is_no_row_of_scores():
    with pytest.raises(ValueError, match="finite scores"):
        attention.softmax((float("inf"), 1.0))
    with pytest.raises(ValueError, match="must be above 0, got 0"):
        probabilities(torch.ones(2), 0)


def test_no_query_sees_a_later_key():
    scores, masked, pattern = (np.array([row[1:] for row in table]) for table in causal_mask(5).tables)
    later = np.triu(np.ones((5, 5), bool), 1)
    assert np.isneginf(masked[later]).all()
    assert np.array_equal(masked[~later], scores[~later])
    assert (pattern[later] == 0).all()
    for t in range(5):
        np.testing.assert_allclose(pattern[t, : t + 1], np.exp(scores[t, : t + 1]) / np.exp(scores[t, : t + 1]).sum())


@settings(max_examples=8)
@given(configs("decoder").filter(lambda config: config.encoder is None))
def test_logits_are_those_of_the_texts_beginning(config):
    found = traced(build(config), random_ids(2, 5))
    (table,) = causal_mask_on(found, row=1).tables
    assert len(table) == 5
    assert max(table.column("largest difference")) < 1e-10


def test_a_model_that_sees_both_sides_has_no_such_mask():
    with pytest.raises(ValueError, match="sees what follows"):
        causal_mask_on(traced(tiny_gpt2(masks=(Bidirectional(),)), random_ids(1, 4)))


@pytest.mark.parametrize("length", [8, 16, 32])
def test_operations_are_those_that_torch_counts_in_the_model(length):
    model = random_model(n_layers=1)
    see = {"0.attention.pattern": lambda value, place, keys: value}  # open attention, whose products are counted
    here = model.begin(random_ids(1, length), looks=see)
    x = model.embed(random_ids(1, length), here)
    with FlopCounterMode(display=False) as counter:
        model.run(x, here)
    (row,) = cost(64, [length]).tables[0].rows
    assert counter.get_total_flops() == sum(row[1:4])


def test_twice_the_length_is_four_times_the_mixing_and_twice_the_rest():
    rows = cost().tables[0].rows
    for short, long in pairwise(rows):
        assert [b / a for a, b in zip(short[1:4], long[1:4], strict=True)] == [4, 2, 2]
    (row,) = cost(768, [6 * 768]).tables[0].rows
    assert row[1] == row[2] + row[3]

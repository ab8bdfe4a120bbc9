"""Each warp against Hugging Face's, a formula or a reported case."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from pellucid.generation import Sampling, warp
from pellucid.generation.choose import Chooser

NONE = torch.zeros((2, 0), dtype=torch.long)


def random_logits(seed: int, V: int, rows: int = 2) -> torch.Tensor:
    return 3 * torch.randn(rows, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def chooser(V: int, rows: int = 1, prompts=None, forbidden=(), **settings) -> Chooser:
    return Chooser(Sampling(**settings), prompts or [[0]] * rows, torch.empty(V, 1), forbidden)


def kept(logits: torch.Tensor) -> list[int]:
    return (logits > -torch.inf).nonzero()[:, -1].tolist()


seeds, sizes = st.integers(0, 10**6), st.integers(1, 3000)


@given(seeds, sizes, st.floats(0.01, 50))
def test_temperature_is_hugging_faces(seed, V, t):
    logits = random_logits(seed, V)
    expected = TemperatureLogitsWarper(t)(NONE, logits).softmax(-1)
    torch.testing.assert_close(warp.temperature(logits, t).softmax(-1), expected, rtol=1e-10, atol=1e-14)


@given(seeds, sizes, st.integers(1, 100))
def test_top_k_is_hugging_faces(seed, V, k):
    logits = random_logits(seed, V)
    assert torch.equal(warp.top_k(logits, k), TopKLogitsWarper(k)(NONE, logits.clone()))


@given(seeds, sizes, st.floats(0.01, 0.9999))
def test_top_p_is_hugging_faces(seed, V, p):
    logits = random_logits(seed, V)
    assert torch.equal(warp.top_p(logits, p), TopPLogitsWarper(p)(NONE, logits.clone()))


@given(seeds, sizes, st.floats(0.0, 1.0))
def test_min_p_is_hugging_faces(seed, V, p):
    logits = random_logits(seed, V)
    assert torch.equal(warp.min_p(logits, p), MinPLogitsWarper(p)(NONE, logits.clone()))


@given(seeds, st.integers(1, 60), st.floats(0.1, 3.0), st.data())
def test_repetition_penalty_is_hugging_faces(seed, V, r, data):
    logits = random_logits(seed, V, rows=1)
    ids = data.draw(st.lists(st.integers(0, V - 1), min_size=1, max_size=9))
    seen = torch.zeros(1, V, dtype=torch.bool)
    seen[0, ids] = True
    expected = RepetitionPenaltyLogitsProcessor(r)(torch.tensor([ids]), logits.clone())
    assert torch.equal(warp.repetition(logits, seen, r), expected)


@settings(max_examples=50)
@given(seeds, sizes, st.floats(0.1, 3), st.integers(1, 50), st.floats(0.05, 0.99), st.floats(0.001, 0.9))
def test_the_whole_chain_is_hugging_faces(seed, V, t, k, p, q):
    logits = random_logits(seed, V)
    warpers = [TemperatureLogitsWarper(t), TopKLogitsWarper(k), TopPLogitsWarper(p), MinPLogitsWarper(q)]
    expected = LogitsProcessorList(warpers)(NONE, logits.clone()).softmax(-1)
    ours = chooser(V, 2, temperature=t, top_k=k, top_p=p, min_p=q, seed=0).narrow(logits).softmax(-1)
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-14)


@given(seeds, st.integers(2, 40), st.floats(-2, 2), st.floats(-2, 2), st.data())
def test_penalties_and_bias_are_the_formula_in_the_documented_order(seed, V, a, b, data):
    prompt = data.draw(st.lists(st.integers(0, V - 1), min_size=1, max_size=5))
    output = data.draw(st.lists(st.integers(0, V - 1), max_size=6))
    bias = data.draw(st.dictionaries(st.integers(0, V - 1), st.floats(-5, 5), max_size=3))
    choose = chooser(
        V, prompts=[prompt], repetition_penalty=1.5, presence_penalty=a, frequency_penalty=b, logit_bias=bias
    )
    for token in output:
        choose.remember(torch.tensor([token]), [0])
    logits = random_logits(seed, V, rows=1)
    expected = []
    for token, z in enumerate(logits[0].tolist()):
        if token in prompt + output:
            z = z / 1.5 if z > 0 else z * 1.5
        count = output.count(token)
        expected.append(z - a * (count > 0) - b * count + bias.get(token, 0.0))
    torch.testing.assert_close(choose.penalise(logits, [0])[0], torch.tensor(expected, dtype=torch.float64))


def test_gen_1_top_k():
    logits = torch.tensor([[2.0, 1.0, -1.0, -3.0]])
    expected = torch.tensor([[0.7310586, 0.2689414, 0.0, 0.0]])
    torch.testing.assert_close(warp.top_k(logits, 2).softmax(-1), expected, rtol=0, atol=1e-7)
    assert torch.equal(warp.top_k(logits, 10), logits)


def test_gen_2_temperature_zero_is_greedy_for_every_seed():
    logits = torch.tensor([[20.0, 19.0, -5.0]])
    for seed in range(20):
        assert chooser(3, temperature=0, seed=seed)(logits, [0])[0] == [0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("t", [1e-4, 1e-30, 1e-320])
def test_gen_2_tiny_temperatures_overflow_nothing(dtype, t):
    logits = torch.tensor([[20.0, 19.0, -5.0]], dtype=dtype)
    choose = chooser(3, temperature=t, seed=0)
    wide = logits.to(torch.promote_types(dtype, torch.float32))
    assert choose.narrow(wide).softmax(-1).tolist() == [[1.0, 0.0, 0.0]]
    assert choose(logits, [0])[0] == [0]


@pytest.mark.parametrize(
    ("probabilities", "p", "expected"),
    [
        ([0.5, 0.41, 0.09], 0.9, [0, 1]),
        ([0.4, 0.3, 0.2, 0.1], 0.8, [0, 1, 2]),
        ([0.5, 0.3, 0.15, 0.05], 0.6, [0, 1]),
        ([0.5, 0.3, 0.2], 1e-8, [0]),
        ([0.5, 0.3, 0.2], 0, [0]),
        ([0.5, 0.3, 0.2], 1, [0, 1, 2]),
        ([0.2, 0.5, 0.3], 0.6, [1, 2]),
    ],
)
def test_gen_3_top_p(probabilities, p, expected):
    for dtype in (torch.float32, torch.float64):
        assert kept(warp.top_p(torch.tensor([probabilities], dtype=dtype).log(), p)) == expected


def test_gen_3_top_p_follows_a_renormalised_top_k():
    choose = chooser(3, temperature=1, top_k=1, top_p=0.8, seed=0)
    assert kept(choose.narrow(torch.tensor([[0.5, 0.3, 0.2]]).log())) == [0]
    # Of [5/8, 3/8] the first holds 0.6; of the whole it would not.
    choose = chooser(3, temperature=1, top_k=2, top_p=0.6, seed=0)
    assert kept(choose.narrow(torch.tensor([[0.5, 0.3, 0.2]]).log())) == [0]


def test_top_p_of_a_flat_distribution_is_the_smallest_set():
    assert len(kept(warp.top_p(torch.zeros(1, 5000, dtype=torch.float64), 0.4999))) == 2500
    assert len(kept(warp.top_p(torch.zeros(1, 5000, dtype=torch.float64), 0))) == 1


def test_gen_4_ids_without_text_are_never_drawn():
    logits = torch.zeros(1, 50304)
    logits[:, 50300], logits[:, 11] = 100.0, 1.0
    forbidden = range(50257, 50304)
    choose = chooser(50304, forbidden=forbidden, temperature=2.0, seed=0)
    numbers = torch.rand(1, 10000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = warp.draw(choose.narrow(choose.penalise(logits, [0])), numbers)
    assert drawn.shape == (1, 10000)
    assert drawn.max() < 50257
    assert all(choose(logits, [0])[0][0] < 50257 for _ in range(20))
    assert chooser(50304, forbidden=forbidden)(logits, [0])[0] == [11]


def test_draw_takes_the_token_whose_share_of_the_line_holds_the_number():
    logits = torch.tensor([[0.0, 0.25, 0.5, 0.0, 0.25, 0.0]]).log()
    numbers = torch.tensor([[0.0, 0.2499, 0.2501, 0.7499, 0.7501, 1 - 2**-53, 0.5]], dtype=torch.float64)
    assert warp.draw(logits, numbers).tolist() == [[1, 1, 2, 2, 4, 4, 2]]


@given(seeds, st.integers(1, 2000))
def test_draw_never_takes_what_is_forbidden(seed, V):
    logits = random_logits(seed, V)
    logits[:, max(V - 5, 1) :] = -torch.inf
    ids = warp.draw(logits, torch.tensor([[0.0, 0.5, 1 - 2**-53]] * 2, dtype=torch.float64))
    assert (logits.gather(-1, ids) > -torch.inf).all()


def test_draws_follow_the_probabilities():
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    choose = chooser(4, 1000, temperature=1.0, seed=0)
    drawn = torch.tensor([choose(probabilities.log().expand(1000, -1), range(1000))[0] for _ in range(20)])
    counts, expected = torch.bincount(drawn.flatten(), minlength=4), 20000 * probabilities
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # chi-squared, 3 degrees of freedom, p = 0.001


def test_logprobs_are_log_softmax_of_the_raw_logits():
    logits = random_logits(0, 30, 3)
    choose = chooser(30, 3, temperature=0.7, top_k=5, presence_penalty=1.0, logit_bias={3: 2.0}, forbidden=[1], seed=0)
    for _ in range(4):
        ids, logprobs = choose(logits, range(3))
        expected = [logits.log_softmax(-1)[row, id].item() for row, id in enumerate(ids)]
        assert logprobs == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "top_k": 2, "top_p": 0.5, "min_p": 0.1, "seed": 0}])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_logits_that_are_not_numbers_are_named(settings, bad):
    logits = torch.zeros(2, 5)
    logits[1, 3] = bad
    with pytest.raises(ValueError, match="prompt 1 are not finite"):
        chooser(5, 2, **settings)(logits, range(2))


@pytest.mark.parametrize("settings", [{"stop_ids": (5,)}, {"logit_bias": {5: 1.0}}])
def test_ids_outside_the_vocabulary_are_refused(settings):
    with pytest.raises(ValueError, match=r"0\.\.4, got 5"):
        chooser(5, **settings)


def test_forbidding_every_id_is_refused():
    with pytest.raises(ValueError, match="every id"):
        chooser(3, forbidden=[0, 1, 2])
    with pytest.raises(ValueError, match="every id"):
        chooser(3, forbidden=[0, 1], stop_ids=(2,), min_new_tokens=1)

"""Scores of heads against their formulas, written out slowly here, and against figures worked out by hand."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.inside import head_targets as targets
from pellucid.inside.circuit_by_hand import induction_circuit
from pellucid.inside.head_scores import attended, measure, patterns, spread
from pellucid.inside.head_targets import Target
from pellucid.inside.trace import trace
from pellucid.model.config import Bidirectional, Causal, Window
from tiny import build, configs, random_ids, tiny_gpt2, traced

UNIFORM = (0, 0)  # a head of the hand-built circuit whose weights are zero


def on(keys: torch.Tensor) -> torch.Tensor:
    """A pattern that gives all attention to one key per query."""
    return torch.eye(int(keys.max()) + 1, len(keys), dtype=torch.float64)[keys][None, None]


def lower(length: int) -> torch.Tensor:
    return torch.ones(1, length, length, dtype=torch.bool).tril()


def bos_and_twice(n: int) -> torch.Tensor:
    r = torch.arange(1, n + 1)
    return torch.cat((torch.tensor([0]), r, r))[None]


def score_of(pattern: torch.Tensor, target: Target) -> float:
    return float(attended(pattern, lower(pattern.shape[-1]), target)[0][0])


# --- Figures that are known ---


def test_the_previous_token_score_of_uniform_attention_over_40_tokens():
    found = trace(induction_circuit(64, 64).double(), torch.arange(40)[None])
    scores = measure(found, [targets.previous_token(found)])[0]
    expected = sum(1 / (q + 1) for q in range(1, 40)) / 39
    assert round(expected, 5) == 0.08407
    assert float(scores.score[UNIFORM]) == pytest.approx(expected, abs=1e-12)
    assert float(scores.null[UNIFORM]) == pytest.approx(expected, abs=1e-12)
    assert int(scores.n[UNIFORM]) == 39


def test_an_ideal_previous_token_head_scores_one_where_the_first_row_is_left_out():
    found = trace(tiny_gpt2(context_length=40), random_ids(1, 40))
    target = targets.previous_token(found)
    pattern = on(torch.tensor([0, *range(39)]))
    assert score_of(pattern, target) == 1.0
    everything = float((pattern * target.keys).sum() / pattern.sum())  # mass over all rows counts row 0, too
    assert everything == pytest.approx(39 / 40, abs=1e-12)


def test_int_4_head_detection():
    ids = bos_and_twice(4)
    found = trace(induction_circuit().double(), ids)
    inductive, previous = measure(found, [targets.induction(found), targets.previous_token(found)])
    assert float(inductive.score[1, 0]) == 1.0
    assert float(inductive.score[UNIFORM]) == pytest.approx(0.136409, abs=5e-7)
    assert float(previous.score[UNIFORM]) == pytest.approx(0.228621, abs=5e-7)
    target = targets.induction(found)
    queries = torch.arange(9)
    assert score_of(on((queries - 3).clamp(min=0)), target) == 1.0
    assert score_of(on((queries - 1).clamp(min=0)), target) == 0.0
    assert score_of(on((queries - 4).clamp(min=0)), target) == 0.0
    assert target.keys[0].nonzero().tolist() == [[q, q - 3] for q in range(5, 9)]
    with pytest.raises(ValueError, match="every key that a query may see: any head would score 1"):
        measure(found, [Target("all", "", torch.ones(1, 9, 9, dtype=torch.bool))])


def test_an_ideal_induction_head_scores_one_where_rivals_do_not():
    n = 25
    found = trace(induction_circuit(64, 64).double(), bos_and_twice(n))
    target, pattern = targets.induction(found), found["1.attention.pattern"][:, :1]
    scores = measure(found, [target])[0]
    assert float(scores.score[1, 0]) == 1.0
    assert int(scores.n[1, 0]) == n
    assert float(pattern[0, 0].diagonal(1 - n).mean()) == pytest.approx((n + 1) / (n + 2), abs=1e-12)  # 0.963
    assert float((pattern * target.keys).sum() / pattern.sum()) == pytest.approx(n / (2 * n + 1), abs=1e-12)  # 0.490


def test_the_duplicate_token_score_is_the_key_one_period_back():
    n = 6
    found = trace(induction_circuit(64, 64).double(), bos_and_twice(n))
    target = targets.duplicate_token(found)
    assert target.keys[0].nonzero().tolist() == [[q, q - n] for q in range(n + 1, 2 * n + 1)]
    assert score_of(on((torch.arange(2 * n + 1) - n).clamp(min=0)), target) == 1.0


def test_prefix_matching_by_rows_and_by_entries():
    n = 25
    ids = torch.cat((torch.tensor([0]), torch.arange(1, n + 1).repeat(4)))[None]
    found = trace(tiny_gpt2(context_length=101), ids)
    latest = on((torch.arange(101) - (n - 1)).clamp(min=0))
    assert score_of(latest, targets.prefix_matching(found)) == 1.0
    assert score_of(latest, targets.prefix_matching(found, reduce="entry_mean")) == 0.5
    assert score_of(latest, targets.prefix_matching(found, -1)) == 0.0
    before = on((torch.arange(101) - (n + 1)).clamp(min=0))
    assert score_of(before, targets.prefix_matching(found, -1)) == 1.0
    assert torch.equal(targets.prefix_matching(found).keys & lower(101), targets.induction(found).keys & lower(101))
    assert torch.equal(targets.prefix_matching(found, 0).keys, targets.duplicate_token(found).keys)
    with pytest.raises(ValueError, match="'row_sum' or 'entry_mean', got 'mean'"):
        targets.prefix_matching(found, reduce="mean")


def test_a_non_repeated_text_is_the_null_of_the_induction_score():
    model = induction_circuit(64, 64).double()
    found, control = (trace(model, ids) for ids in (bos_and_twice(25), torch.arange(51)[None]))
    without = measure(control, [targets.induction(found)])[0]
    assert float(without.score[1, 0]) < 1e-100
    assert float(without.score[UNIFORM]) == pytest.approx(float(without.null[UNIFORM]), abs=1e-12)
    scores = replace(measure(found, [targets.induction(found)])[0], control=without.score)
    assert scores.table().columns[-1] == "control"
    assert scores.top(1).rows[0][:3] == (1, 0, 1.0)


def test_entropy_and_distance_of_uniform_and_of_sharp_heads():
    found = trace(induction_circuit(64, 64).double(), torch.arange(40)[None])
    entropy, relative, distance = spread(found)
    assert float(entropy.score[UNIFORM]) == pytest.approx(sum(math.log(q + 1) for q in range(40)) / 40, abs=1e-12)
    assert float(relative.score[UNIFORM]) == pytest.approx(1.0, abs=1e-12)
    assert float(distance.score[UNIFORM]) == pytest.approx(sum(q / 2 for q in range(40)) / 40, abs=1e-12)
    assert float(entropy.score[0, 1]) == float(relative.score[0, 1]) == 0.0
    assert float(distance.score[0, 1]) == pytest.approx(39 / 40, abs=1e-12)
    for each in (entropy, relative, distance):
        assert float(each.null[0, 1]) == pytest.approx(float(each.score[UNIFORM]), abs=1e-12)


# --- Against the formulas, one entry at a time ---


def wanted(name: str, t: list[int], q: int, S: int) -> list[int]:
    match name:
        case "previous_token":
            return [k for k in range(S) if k == q - 1]
        case "next_token":
            return [k for k in range(S) if k == q + 1]
        case "first_token":
            return [0] if q >= 1 else []
        case "duplicate_token":
            return [k for k in range(q) if t[k] == t[q]]
        case "induction":
            return [k for k in range(1, S) if t[k - 1] == t[q] and k - 1 < q]
    raise AssertionError(name)


NAMES = ("previous_token", "next_token", "first_token", "duplicate_token", "induction")


def visible(mask, q: int, k: int) -> bool:
    match mask:
        case Causal():
            return k <= q
        case Window(width):
            return q - width < k <= q
        case Bidirectional():
            return True


@settings(max_examples=30)
@given(configs(), st.sampled_from(["none", "left", "right"]), st.integers(0, 5))
def test_scores_are_their_formulas_in_every_form_of_model(config, side, seed):
    """Padded rows are scored as if each stood alone; grouped queries, windows, encoder-decoders by the same lines."""
    model = build(config)
    ids = random_ids(2, 9, seed) % 4  # few words, so that they come again
    mask = torch.ones(2, 9, dtype=torch.long)
    lengths = [9, 9] if side == "none" else [9, 6]
    if side != "none":
        mask[1, :3] = 0
        mask = mask if side == "left" else mask.flip(1)
    found = traced(model, ids, None if side == "none" else mask)
    scores = dict(zip(NAMES, measure(found, [getattr(targets, name)(found) for name in NAMES]), strict=True))
    entropy, relative, distance = spread(found)
    for layer in range(config.n_layers):
        pattern = found[f"{model.prefix}{layer}.attention.pattern"]
        sums = {name: torch.zeros(config.n_heads, dtype=torch.float64) for name in (*NAMES, "H", "relative", "far")}
        count, nulls, several = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0.0), 0
        for row in range(2):
            real = mask[row].bool()
            t, A = ids[row][real].tolist(), pattern[row][:, real][:, :, real]
            for q in range(lengths[row]):
                seen = [k for k in range(lengths[row]) if visible(config.mask(layer), q, k)]
                for name in NAMES:
                    keys = [k for k in wanted(name, t, q, lengths[row]) if k in seen]
                    count[name] += bool(keys)
                    nulls[name] += len(keys) / len(seen)
                    sums[name] += A[:, q, keys].sum(-1)
                H = -(A[:, q, seen] * A[:, q, seen].log()).sum(-1)
                sums["H"] += H
                sums["far"] += sum(A[:, q, k] * (q - k) for k in seen)
                if len(seen) > 1:
                    several += 1
                    sums["relative"] += H / math.log(len(seen))
        for name in NAMES:
            if not count[name]:
                assert bool(scores[name].score[layer].isnan().all())
                continue
            torch.testing.assert_close(scores[name].score[layer], sums[name] / count[name], atol=1e-12, rtol=0)
            assert float(scores[name].null[layer, 0]) == pytest.approx(nulls[name] / count[name], abs=1e-12)
            assert scores[name].n[layer].tolist() == [count[name]] * config.n_heads
        torch.testing.assert_close(entropy.score[layer], sums["H"] / sum(lengths), atol=1e-12, rtol=0)
        torch.testing.assert_close(distance.score[layer], sums["far"] / sum(lengths), atol=1e-12, rtol=0)
        torch.testing.assert_close(relative.score[layer], sums["relative"] / several, atol=1e-12, rtol=0)


def test_the_null_is_that_of_targets_drawn_anew():
    """Mean and spread over all ways to draw as many keys among those a query sees, counted out."""
    draw = torch.Generator().manual_seed(1)
    pattern = torch.rand(1, 1, 4, 4, generator=draw, dtype=torch.float64).tril()
    pattern = pattern / pattern.sum(-1, keepdim=True)
    keys = torch.tensor([[[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 0, 1]]], dtype=torch.bool)
    _, null, sd, n, _ = attended(pattern, lower(4), Target("", "", keys))
    choices = [[()], itertools.combinations(range(2), 1), itertools.combinations(range(3), 2)]
    ways = itertools.product(*choices, itertools.combinations(range(4), 2))
    scores = torch.tensor(
        [sum(float(pattern[0, 0, q, list(ks)].sum()) for q, ks in enumerate(way)) / 3 for way in ways]
    )
    assert n == 3
    assert float(null[0]) == pytest.approx(float(scores.mean()), abs=1e-6)
    assert float(sd[0]) == pytest.approx(float(scores.std(correction=0)), abs=1e-6)


def test_one_layers_patterns_are_held_at_a_time():
    found = trace(tiny_gpt2(), random_ids(1, 6))
    each = patterns(found)
    assert tuple(next(each)[0].shape) == (1, 4, 6, 6)
    assert next(each)[0].dtype == torch.float64
    assert next(each, None) is None


def test_a_target_of_another_shape_is_refused():
    found = trace(tiny_gpt2(), random_ids(1, 6))
    with pytest.raises(ValueError, match=r"1 x 6 x 6, got \[1, 5, 5\]"):
        measure(found, [Target("", "", torch.ones(1, 5, 5, dtype=torch.bool))])


def test_scores_as_tables_and_plain_data():
    found = trace(tiny_gpt2(), random_ids(1, 9) % 4)
    scores = measure(found, [targets.induction(found), targets.next_token(found)])
    best = scores[0].top(3)
    assert list(best.column("score")) == sorted(scores[0].score.flatten().tolist(), reverse=True)[:3]
    assert scores[0].to_json()["columns"] == ["layer", "head", "score", "null", "z", "n"]
    assert len(scores[0].table()) == 8
    assert set(scores[1].table().column("score")) == {None}  # a causal model's queries see no next token
    assert set(scores[1].table().column("n")) == {0}
    z = (scores[0].score - scores[0].null) / scores[0].sd
    assert scores[0].table().column("z") == pytest.approx(z.flatten().tolist(), abs=1e-12)

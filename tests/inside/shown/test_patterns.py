"""Patterns as bytes: exact ones are the run's, pooled ones the largest of each group, in every kind of model."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from any_edits import some_edits
from pellucid.inside import edits as edit
from pellucid.inside.shown import patterns as module
from pellucid.inside.shown.patterns import pattern_plan, patterns
from pellucid.model.config import Bidirectional, Causal, Config, Init, Window
from pellucid.views.packing import unpacked
from tiny import VOCAB, build, configs, random_ids, tiny_gpt2, traced, with_encoder


def whole(run, layer, part="attention"):
    """The pattern itself [H T S], of the first row."""
    return run[f"{run.transformer.prefix}{layer}.{part}.pattern"][0].numpy()


def largest(values, step):
    """The largest of each group, one group after another."""
    heads, rows, columns = values.shape
    found = [
        [
            [values[h, r : r + step[0], c : c + step[1]].max() for c in range(0, columns, step[1])]
            for r in range(0, rows, step[0])
        ]
        for h in range(heads)
    ]
    return np.array(found)


@settings(max_examples=25)
@given(configs(), st.sampled_from([0, 1, 2, 3, 4, 64]), st.data())
def test_patterns_of_any_model_are_the_runs(config, size, data):
    model = build(config)
    run = traced(model, random_ids(1, 7))
    if data.draw(st.booleans()):
        run = run.edit(*some_edits(data.draw, model, run))
    parts = ["attention"] if config.encoder is None else ["attention", "cross"]
    for part in parts:
        packed = patterns(run, 0, config.n_layers - 1, part, size)
        assert packed.meta["layers"] == list(range(config.n_layers))
        step = packed.meta["step"]
        for layer, array in enumerate(packed.arrays):
            exact = whole(run, layer, part)
            expected = largest(exact, step)
            assert array.name == str(layer)
            assert expected.shape == array.shape
            assert not size or max(expected.shape[1:]) <= size
            found = unpacked(array)
            assert np.abs(found - expected).max() <= array.error
            if exact.min() >= 0 and exact.max() <= 1:
                assert array.error < 0.002
                assert np.array_equal(np.rint(255 * expected), np.rint(255 * found))


def test_one_head_of_a_layer():
    run = traced(tiny_gpt2(torch.float32), random_ids(1, 9))
    packed = patterns(run, layer=1, head=2)
    assert packed.arrays[0].shape == (1, 9, 9)
    assert np.abs(unpacked(packed.arrays[0])[0] - whole(run, 1)[2]).max() <= packed.arrays[0].error


@pytest.mark.parametrize(("mask", "triangle"), [(Causal(), True), (Window(3), True), (Bidirectional(), False)])
def test_only_what_can_be_seen_is_sent(mask, triangle):
    run = traced(tiny_gpt2(torch.float32, masks=(mask,)), random_ids(1, 12))
    for size, side in ((0, 12), (5, 4)):
        array = patterns(run, size=size).arrays[0]
        assert array.triangle == triangle
        assert len(array.data) == 4 * (side * (side + 1) // 2 if triangle else side * side)


def test_what_an_edit_puts_above_the_diagonal_is_there():
    run = traced(tiny_gpt2(torch.float32), random_ids(1, 5))
    edited = run.edit(edit.set_to("1.attention.pattern", 3.0, head=1, position=2, key=4))
    array = patterns(edited, layer=1).arrays[0]
    assert not array.triangle
    assert unpacked(array)[1, 2, 4] == pytest.approx(3.0, abs=array.error)
    assert patterns(edited, layer=0).arrays[0].triangle


def test_padding_is_left_out():
    ids = random_ids(2, 6)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    model = tiny_gpt2(torch.float32)
    alone = patterns(traced(model, ids[:1, 2:]), layer=1)
    padded = patterns(traced(model, ids, mask), layer=1)
    assert padded.arrays[0].shape == (4, 4, 4)
    assert np.allclose(unpacked(padded.arrays[0]), unpacked(alone.arrays[0]), atol=1 / 255)


ENCODED = with_encoder(Config(VOCAB, 32, n_layers=2, d_model=12, n_heads=3, n_kv_heads=1, init=Init(0.4)))


def test_cross_patterns_have_the_sources_keys():
    model = build(ENCODED)
    run = traced(model, random_ids(1, 6))
    assert pattern_plan(run, "cross")["keys"] == 6
    assert patterns(run, part="cross", size=4).meta["step"] == [2, 2]


@pytest.mark.parametrize(
    ("heads", "layers", "tokens", "size"), [(3, 2, 12, 0), (9, 30, 512, 64), (12, 12, 128, 0), (32, 4, 700, 64)]
)
def test_all_heads_are_asked_for_in_few_small_requests(heads, layers, tokens, size, monkeypatch):
    """270 heads at 512 tokens: three answers of under 256 kB each, 562 kB in all."""
    shape = Config(VOCAB, 1024, n_layers=layers, d_model=heads * 2, n_heads=heads, d_ff=4, init=Init(0.4))
    run = traced(build(shape, dtype=torch.float32), random_ids(1, tokens))
    plan = pattern_plan(run)
    side = -(-tokens // plan["steps"][0])
    assert (plan["size"], plan["large"]) == (size, 0)
    assert side <= (size or tokens)
    first, last = zip(*plan["requests"], strict=True)
    assert (first[0], last[-1]) == (0, layers - 1)
    assert list(first[1:]) == [each + 1 for each in last[:-1]]
    a_layer = heads * side * (side + 1) // 2
    for low, high in plan["requests"]:
        assert high == low or (high - low + 1) * a_layer <= 1 << 18
    packed = patterns(run, first[0], last[0], size=size)
    assert sum(len(array.data) for array in packed.arrays) == (last[0] + 1) * a_layer
    if tokens == 512:
        assert len(plan["requests"]) == 3
        assert layers * a_layer == 561_600


def test_what_is_too_much_is_refused_before_it_is_computed(monkeypatch):
    run = traced(tiny_gpt2(torch.float32), random_ids(1, 12))
    monkeypatch.setattr(module, "MOST_BYTES", 4 * 78)
    patterns(run)
    with pytest.raises(ValueError, match=r"at most 312 bytes .* got 624: ask for fewer layers"):
        patterns(run, last=1)
    patterns(run, last=1, head=0)
    monkeypatch.setattr(module, "MOST_BYTES", 77)
    assert pattern_plan(run)["large"] == 8
    patterns(run, head=0, size=8)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"layer": 2}, r"layer must lie in 0\.\.1, got 2"),
        ({"layer": 1, "last": 0}, r"last must lie in 1\.\.1 \(or be -1 for one layer\), got 0"),
        ({"last": 2}, r"last must lie in 0\.\.1"),
        ({"head": 4}, r"head must lie in 0\.\.3 \(or -1 for all\), got 4"),
        ({"part": "cross"}, r"part must be 'attention' in this model, got 'cross'"),
        ({"size": -1}, r"size must be 0 \(exact\)"),
    ],
)
def test_what_there_is_not_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        patterns(traced(tiny_gpt2(torch.float32), random_ids(1, 5)), **wrong)

"""Traces: every value recomputed from the stream equals what the pass itself had."""

import copy
import gc
import pickle
import re
import weakref
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.inside.errors import SiteError, WeightsChangedError
from pellucid.inside.recorder import Recorder
from pellucid.inside.trace import recorded, trace
from pellucid.model.attention import Attention, CrossAttention
from pellucid.model.cache import Cache
from pellucid.model.config import Dropout
from pellucid.model.sites import sites
from tiny import arguments, build, configs, passed, random_ids, tiny_gpt2, traced

LEFT = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
RIGHT = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


def watched(model, ids, mask=None):
    """Every site's value as one pass had it, all of them looked at at once."""
    seen = {}

    def keeper(name):
        def keep(value, _place, _keys):
            seen[name] = value
            return value

        return keep

    passed(model, ids, mask, {site.name: keeper(site.name) for site in sites(model.config)})
    return seen


@pytest.mark.slow
@settings(max_examples=40)
@given(configs(), st.sampled_from([None, LEFT, RIGHT]))
def test_every_site_read_from_the_stream_is_what_the_pass_had(config, mask):
    model, ids = build(config), random_ids(2, 5)
    found, seen = traced(model, ids, mask), watched(model, ids, mask)
    assert set(found.names) == set(seen)
    for name, value in seen.items():
        read = found[name]
        assert read.shape == value.shape
        if name.endswith("scores"):
            read, value = (torch.where(found[name].isinf(), 0.0, x) for x in (read, value))
        torch.testing.assert_close(read, value, atol=1e-11, rtol=1e-11, msg=name)


@settings(max_examples=30)
@given(configs(), st.sampled_from([None, LEFT, RIGHT]))
def test_patterns_sum_to_one_and_scores_are_hidden_where_the_mask_is(config, mask):
    model, ids = build(config), random_ids(2, 5)
    found = traced(model, ids, mask)
    real = torch.ones(2, 5, dtype=torch.bool) if mask is None else mask.bool()
    for name in [name for name in found.names if name.endswith(".pattern")]:
        pattern, scores = found[name], found[name.replace("pattern", "scores")]
        sums = pattern.sum(-1)
        torch.testing.assert_close(sums, real[:, None].expand_as(sums).to(sums.dtype))
        assert torch.equal(scores == -torch.inf, pattern == 0)
        torch.testing.assert_close(scores.softmax(-1).nan_to_num(0.0), pattern)


@settings(max_examples=40)
@given(configs())
def test_int_1_the_stream_is_what_the_names_say(config):
    """Each state is the one before it and its updates; in a post-norm model, the norm of that sum."""
    model, ids = build(config), random_ids(1, 6)
    found, before = traced(model, ids), model.prefix
    assert torch.equal(found[f"{before}logits"], passed(model, ids))
    parts = [f"{before}embed.{part}" for part in ("token", "position", "type")]
    start = sum(found[part] for part in parts if part in found.names)
    start = start if model.embed.norm is None else model.embed.norm(start)
    torch.testing.assert_close(start, found[f"{before}0.stream"], atol=1e-12, rtol=1e-12)
    for step, state, after in zip(model.steps, found.states[:-1], found.states[1:], strict=True):
        total = state + sum(found[f"{part.name}.update"] for part in step.parts)
        if step.after is not None:
            torch.testing.assert_close(found[f"{step.parts[0].name}.sum"], total)
            total = step.after(total)
        torch.testing.assert_close(total, after, atol=1e-12, rtol=1e-12)


@pytest.mark.slow
@settings(max_examples=30)
@given(configs())
def test_int_2_head_writes_and_the_bias_are_the_update(config):
    model, ids = build(config), random_ids(2, 6)
    found = traced(model, ids)
    for attention in [part for step in model.steps for part in step.parts if isinstance(part, Attention)]:
        name = attention.name
        bias = 0 if attention.out.bias is None else attention.out.bias
        update = found[f"{name}.update"]
        writes = found[f"{name}.writes"].sum(2) + bias
        torch.testing.assert_close(writes, update, atol=1e-12, rtol=1e-12)
        concatenated = found[f"{name}.heads"].flatten(2) @ attention.out.weight.T + bias
        torch.testing.assert_close(concatenated, update, atol=1e-12, rtol=1e-12)
        # Rows of the pattern sum to 1, so the value bias may be moved behind the output matrix.
        made = attention.kv if isinstance(attention, CrossAttention) else attention.qkv
        if made.bias is not None:
            shared = attention.H // attention.G
            value_bias = made.bias.view(-1, attention.K)[-attention.G :].repeat_interleave(shared, 0)
            values = found[f"{name}.value"].repeat_interleave(shared, 2) - value_bias
            heads = torch.einsum("bhts,bshk->bthk", found[f"{name}.pattern"], values)
            moved = torch.einsum("bthk,hkd->btd", heads, attention.W_O) + bias
            moved = moved + torch.einsum("hk,hkd->d", value_bias, attention.W_O)
            torch.testing.assert_close(moved, update, atol=1e-11, rtol=1e-11)


@pytest.mark.slow
@settings(max_examples=20)
@given(configs("causal"), st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_the_streams_of_chunks_are_the_trace_of_the_whole(config, chunks):
    model, ids = build(config), random_ids(1, sum(chunks))
    whole, types = traced(model, ids), arguments(config, *ids.shape).get("types")
    memory = None if whole.source is None else whole.source.memory()
    recorder, cache, start = Recorder(model), Cache(config.masks), 0
    for size in chunks:
        part = ids[:, start : start + size]
        here = model.begin(part, None, cache, recorder.looks, ids.shape[1], memory)
        model.run(model.embed(part, here, None if types is None else types[:, start : start + size]), here)
        start += size
    pieces = replace(recorded(model, recorder, ids, None, types), source=whole.source)
    for name in whole.names:
        torch.testing.assert_close(pieces[name], whole[name], atol=1e-11, rtol=1e-11, msg=name)


def test_padding_is_left_out_of_tokens_and_positions():
    model = tiny_gpt2()
    ids, mask = torch.tensor([[5, 6, 7, 8], [0, 0, 9, 10]]), torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    both, alone = trace(model, ids, mask), trace(model, torch.tensor([[9, 10]]))
    assert both.tokens(1) == ["9", "10"]
    for position in (0, 1, -1, -2):
        assert [row[1] for row in both.top(3, 1, position)] == [row[1] for row in alone.top(3, 0, position)]
        ours, theirs = (
            both.ledger(3, by="head", row=1, position=position),
            alone.ledger(3, by="head", position=position),
        )
        for (name, amount), (other_name, other) in zip(ours.entries, theirs.entries, strict=True):
            assert name == other_name
            assert amount == pytest.approx(other, abs=1e-11)
    with pytest.raises(ValueError, match=r"positions 0\.\.1, got position=2"):
        both.top(3, 1, 2)
    with pytest.raises(ValueError, match=r"rows 0\.\.1, got row=2"):
        both.top(3, 2)


def test_dropout_is_off_whatever_the_mode_and_the_mode_stays():
    plain, dropping = tiny_gpt2(), tiny_gpt2(dropout=Dropout(0.5, 0.5, 0.5)).train()
    dropping.load_state_dict(plain.state_dict())
    ids = random_ids(1, 8)
    assert torch.equal(trace(dropping, ids)["logits"], plain(ids))
    assert dropping.training


def test_reading_after_the_weights_changed_is_an_error():
    model, ids = tiny_gpt2(), random_ids(1, 4)
    found = trace(model, ids)
    pattern = found["0.attention.pattern"]
    model.blocks[1].ffn.up.weight.mul_(1.01)
    assert torch.equal(found["0.attention.pattern"], pattern)
    with pytest.raises(WeightsChangedError, match=r"1\.ffn"):
        found["1.ffn.neurons"]
    with pytest.raises(WeightsChangedError, match=r"1\.ffn"):
        found.ledger(3)


def test_a_fused_optimizer_step_is_noticed():
    model, ids = tiny_gpt2(torch.float32).requires_grad_(True), random_ids(1, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    found = trace(model, ids)
    model(ids).square().mean().backward()
    optimizer.step()
    for name in ("embed.token", "0.attention.query", "1.ffn.update", "logits"):
        with pytest.raises(WeightsChangedError):
            found[name]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("0.atention.pattern", "did you mean '0.attention.pattern'"),
        ("7.ffn.neurons", "the last layer is 1"),
        ("2.attention.pattern", "the last layer is 1 (its output is 2.stream)"),
        ("nonsense", "model.sites"),
        ("*.attention.pattern", "is a pattern"),
        ("", "model.sites"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(name, said):
    with pytest.raises(SiteError, match=re.escape(said)):
        trace(tiny_gpt2(), random_ids(1, 3))[name]


def test_patterns_select_sites():
    found = trace(tiny_gpt2(n_layers=4), random_ids(1, 3))
    assert list(found.read("*.attention.pattern")) == [f"{layer}.attention.pattern" for layer in range(4)]
    assert list(found.read("1-2.ffn.neurons")) == ["1.ffn.neurons", "2.ffn.neurons"]
    assert list(found.read("*.stream")) == [f"{layer}.stream" for layer in range(5)]
    assert list(found.read("2.attention.*")) == [
        f"2.attention.{part}"
        for part in ("input", "query", "key", "value", "scores", "pattern", "heads", "writes", "update")
    ]
    assert list(found.read("logits")) == ["logits"]
    assert list(found.read("*")) == found.names
    for nothing in ("5-9.ffn.neurons", "*.nothing"):
        with pytest.raises(SiteError, match="no site fits"):
            found.read(nothing)


def test_only_the_stream_is_kept():
    model, ids = tiny_gpt2(torch.float32), random_ids(3, 10)
    found = trace(model, ids)
    assert found.nbytes == 5 * 3 * 10 * 32 * 4 + 3 * 10 * 8
    assert len(found.states) == 2 * 2 + 1


def test_a_trace_is_freed_when_it_is_dropped():
    model = tiny_gpt2()
    gc.collect()
    gc.disable()
    try:
        found = trace(model, random_ids(1, 4))
        found.ledger(3)
        state = weakref.ref(found.states[1])
        del found
        assert state() is None
    finally:
        gc.enable()


def test_an_exception_in_a_look_leaves_the_model_as_it_was():
    model, ids = tiny_gpt2(), random_ids(1, 4)
    before = model(ids)

    def fail(_value, _place, _keys):
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        model(ids, looks={"1.ffn.neurons": fail})
    assert torch.equal(model(ids), before)


def test_traces_can_be_copied_and_pickled():
    found = trace(tiny_gpt2(), random_ids(1, 4))
    for other in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert torch.equal(other["1.attention.pattern"], found["1.attention.pattern"])


def test_a_trace_reads_under_the_autocast_it_was_made_with():
    model, ids = tiny_gpt2(torch.float32), random_ids(1, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, inside = trace(model, ids), model(ids)
    assert torch.equal(found["logits"], inside)
    assert found["logits"].dtype == torch.bfloat16

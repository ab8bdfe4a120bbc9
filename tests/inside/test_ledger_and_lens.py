"""Ledger and lens against the model's own logits and formulas written here."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from any_edits import some_edits
from pellucid.inside.accounting import WAYS
from pellucid.inside.asking import account
from pellucid.inside.errors import LedgerError
from pellucid.inside.ledger import ledger as ledger_of
from pellucid.inside.ledger import logit_direction, state_ledger
from pellucid.inside.trace import trace
from pellucid.model.activation import activate
from pellucid.model.config import Config, Init, LayerNorm, RMSNorm
from tiny import VOCAB, build, configs, passed, random_ids, tiny_gpt2, traced


@pytest.mark.slow
@settings(max_examples=40)
@given(configs(), st.sampled_from(WAYS), st.integers(0, VOCAB - 1), st.integers(-5, 4))
def test_the_ledger_adds_up(config, by, token, position):
    ids = random_ids(2, 5)
    for dtype, bound in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        model = build(config, dtype=dtype)
        logits, found = passed(model, ids)[1, position], traced(model, ids)
        along = found.states[-1][1, position].double() @ (probe := torch.randn(config.d_model, dtype=torch.float64))
        anything = found.ledger(direction=probe, by=by, row=1, position=position)
        scale = max(1.0, float(logits.abs().max()), float(along.abs()))
        assert anything.value == pytest.approx(float(along), abs=bound * scale)
        assert abs(anything.remainder) <= bound * scale
        if model.head is not None:
            with pytest.raises(LedgerError, match=r"direction=trace\.direction"):
                found.ledger(token, by=by)
            continue
        ledger = found.ledger(token, by=by, row=1, position=position)
        assert ledger.value == pytest.approx(float(logits[token]), abs=bound * scale)
        assert abs(ledger.remainder) <= bound * scale
        difference = found.ledger(token, minus=7, by=by, row=1, position=position)
        assert difference.value == pytest.approx(float(logits[token] - logits[7]), abs=bound * scale)
        assert abs(difference.remainder) <= bound * scale


@settings(max_examples=30)
@given(configs(), st.integers(0, VOCAB - 1))
def test_a_direction_accounts_for_the_logit_up_to_shifts_alone(config, token):
    """Everything behind the final stream frozen, the logit is the direction's product and a constant of biases."""
    model, ids = build(config), random_ids(2, 5)
    found = traced(model, ids)
    direction = found.direction(token, row=1)
    state = found.states[-1][1, -1]
    x = state if model.final_norm is None else model.final_norm(state[None, None])[0, 0]
    shift = torch.zeros(config.d_model, dtype=torch.float64)
    if model.final_norm is not None and model.final_norm.bias is not None:
        shift = model.final_norm.bias
    row, constant = model.W_U[token], 0.0
    if model.head is not None:
        z = x @ model.head.dense.weight.T + model.head.dense.bias
        active = activate(config.activation, z)
        ratio, scale = active / z, model.head.norm.scale(active[None, None])[0, 0]
        row = row * model.head.norm.weight * scale
        row = row if isinstance(config.norm, RMSNorm) else row - row.mean()
        constant = 0.0 if model.head.norm.bias is None else model.head.norm.bias @ model.W_U[token]
        constant = constant + (model.head.dense.bias * ratio) @ row
        row = (row * ratio) @ model.head.dense.weight
    if model.unembed.bias is not None:
        constant = constant + model.unembed.bias[token]
    expected = passed(model, ids)[1, -1, token] / config.logit_scale - constant - shift @ row
    torch.testing.assert_close(direction @ state / config.logit_scale, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("norm", [LayerNorm(), RMSNorm()])
def test_entries_are_direct_logit_attribution(norm):
    model = build(Config(VOCAB, 16, 2, 24, 3, norm=norm, tied=False, init=Init(0.4)))
    ids, token = random_ids(1, 5), 11
    found = trace(model, ids)
    x, final = found["2.stream"][0, -1], model.final_norm
    centre = x.mean() if isinstance(norm, LayerNorm) else 0.0
    sigma = ((x - centre).pow(2).mean() + norm.eps).sqrt()

    def attributed(write):
        write = write - (write.mean() if isinstance(norm, LayerNorm) else 0.0)
        return float((write / sigma * final.weight) @ model.W_U[token])

    entries = dict(found.ledger(token, by="head").entries)
    sublayers = dict(found.ledger(token).entries)
    assert entries["embed.token"] == pytest.approx(attributed(model.embed.token.weight[ids[0, -1]]), abs=1e-12)
    assert entries["embed.position"] == pytest.approx(attributed(model.embed.position.weight[4]), abs=1e-12)
    for layer, block in enumerate(model.blocks):
        attention = block.attention
        writes = found[f"{layer}.attention.heads"][0, -1]
        for h in range(3):
            expected = attributed(writes[h] @ attention.out.weight[:, h * 8 : h * 8 + 8].T)
            assert entries[f"{layer}.attention head {h}"] == pytest.approx(expected, abs=1e-12)
        assert entries[f"{layer}.attention bias"] == pytest.approx(attributed(attention.out.bias), abs=1e-12)
        ffn = attributed(found[f"{layer}.ffn.update"][0, -1])
        assert entries[f"{layer}.ffn"] == sublayers[f"{layer}.ffn"] == pytest.approx(ffn, abs=1e-12)
        heads = sum(value for name, value in entries.items() if name.startswith(f"{layer}.attention"))
        assert sublayers[f"{layer}.attention"] == pytest.approx(heads, abs=1e-12)
    shift = 0.0 if final.bias is None else float(final.bias @ model.W_U[token])
    assert entries.get("final.bias", 0.0) == pytest.approx(shift, abs=1e-12)


def test_the_top_of_a_ledger_still_adds_up():
    ledger = trace(tiny_gpt2(), random_ids(1, 5)).ledger(3, minus=4, by="head")
    short = ledger.top(4)
    assert len(short) == 5
    assert short.rows[-1][0] == f"{len(ledger.entries) - 4} others"
    assert sum(short.column("amount")) == pytest.approx(ledger.total, abs=1e-12)
    sizes = [abs(amount) for amount in short.column("amount")[:4]]
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes) >= sorted((abs(amount) for _, amount in ledger.entries), reverse=True)[3]
    assert len(ledger.top(100)) == len(ledger.entries)
    data = ledger.to_json()
    assert data["sum"] + data["remainder"] == pytest.approx(data["value"], abs=1e-12)


def test_a_ledger_refuses_what_it_cannot_answer():
    found = trace(tiny_gpt2(), random_ids(1, 5))
    with pytest.raises(ValueError, match="'sublayer', 'head', 'neuron', 'source' or 'head and source', got 'neurn'"):
        found.ledger(3, by="neurn")
    with pytest.raises(ValueError, match=r"0\.\.49, got 50"):
        found.ledger(50)
    with pytest.raises(ValueError, match="no tokenizer"):
        found.ledger(" Mary")
    with pytest.raises(ValueError, match="at least 1, got 0"):
        found.ledger(3).top(0)


@pytest.mark.slow
@settings(max_examples=25)
@given(configs(), st.sampled_from(WAYS), st.integers(0, VOCAB - 1), st.integers(-5, 4), st.data())
def test_the_ledger_of_what_the_lens_reads_at_any_depth(config, by, token, position, data):
    """The earlier state in the final one's place, the model's own end gives the logit; edits of that end count too."""
    model, ids = build(config), random_ids(2, 5)
    edits = some_edits(data.draw, model, traced(model, ids))
    found = traced(model, ids).edit(*edits)
    index = data.draw(st.integers(0, len(found.states) - 1))
    read = found.with_states((*found.states[:-1], found.states[index]))
    expected = read.logits_at(1, [position % 5])[0]
    state = found.states[index][1, position].double()
    if model.head is not None:
        along = account(found, partial(logit_direction, token=token, minus=None, index=index), 1, position, ["final"])
        same = account(read, partial(logit_direction, token=token, minus=None), 1, position, ["final"])
        torch.testing.assert_close(along, same, atol=0, rtol=0)
        asked = partial(state_ledger, index=index, direction=along, by=by, title="")
        assert account(found, asked, 1, position, found.prints).value == pytest.approx(float(along @ state), abs=1e-9)
        return
    ledger = account(found, partial(ledger_of, token=token, minus=None, by=by, index=index), 1, position, found.prints)
    scale = max(1.0, float(expected.abs().max()))
    assert ledger.value == pytest.approx(float(expected[token]), abs=1e-10 * scale)
    assert abs(ledger.remainder) <= 1e-10 * scale
    assert ledger.asked is not None
    assert ledger.asked.read(ledger.asked.run) == pytest.approx(ledger.value, abs=1e-10 * scale)
    if index == len(found.states) - 1:
        assert ledger == found.ledger(token, by=by, row=1, position=position)
    else:
        assert "as the lens reads it at" in ledger.title

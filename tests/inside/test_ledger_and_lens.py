"""Ledger and lens against the model's own logits and formulas written here."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.inside.trace import trace
from pellucid.model.config import Config, Init, LayerNorm, RMSNorm
from tiny import VOCAB, build, configs, random_ids, tiny_gpt2


@settings(max_examples=12)
@given(configs(), st.sampled_from(["sublayer", "head"]), st.integers(0, VOCAB - 1), st.integers(-5, 4))
def test_the_ledger_adds_up_to_the_logit(config, by, token, position):
    ids = random_ids(2, 5)
    for dtype, bound in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        model = build(config, dtype=dtype)
        logits = model(ids)[1, position]
        ledger = trace(model, ids).ledger(token, by=by, row=1, position=position)
        scale = max(1.0, float(logits.abs().max()))
        assert ledger.value == pytest.approx(float(logits[token]), abs=bound * scale)
        assert abs(ledger.remainder) <= bound * scale
        difference = trace(model, ids).ledger(token, minus=7, by=by, row=1, position=position)
        assert difference.value == pytest.approx(float(logits[token] - logits[7]), abs=bound * scale)
        assert abs(difference.remainder) <= bound * scale


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
    assert data["sum"] + data["remainder"] == pytest.approx(data["logit"], abs=1e-12)


def test_a_ledger_refuses_what_it_cannot_answer():
    found = trace(tiny_gpt2(), random_ids(1, 5))
    with pytest.raises(ValueError, match="'sublayer' or 'head', got 'neurn'"):
        found.ledger(3, by="neurn")
    with pytest.raises(ValueError, match=r"0\.\.49, got 50"):
        found.ledger(50)
    with pytest.raises(ValueError, match="no tokenizer"):
        found.ledger(" Mary")
    with pytest.raises(ValueError, match="at least 1, got 0"):
        found.ledger(3).top(0)


@settings(max_examples=12)
@given(configs())
def test_the_lens_has_fresh_statistics_and_ends_in_the_models_own_distribution(config):
    model, ids = build(config), random_ids(1, 5)
    found = trace(model, ids)
    table = found.lens(token=9)
    assert len(table) == config.n_layers + 1
    chances = model(ids)[0, -1].softmax(-1)
    assert table.rows[-1][3] == float(chances.max())
    assert table.rows[-1][4] == float(chances[9])
    for depth, site, top, best, followed, rank, entropy in table:
        assert site == f"{depth}.stream"
        here = found[site][:, -1:]
        logits = model.final_norm(here) @ model.W_U.T * config.logit_scale
        expected = logits[0, 0].softmax(-1)
        assert int(top) == int(expected.argmax())
        assert best == pytest.approx(float(expected.max()), abs=1e-12)
        assert followed == pytest.approx(float(expected[9]), abs=1e-12)
        assert rank == 1 + int((expected > expected[9]).sum())
        assert entropy == pytest.approx(float(-(expected * expected.clamp(min=1e-300).log()).sum()), abs=1e-10)


def test_int_1_the_lens_at_the_end_is_the_logits_bit_for_bit():
    model, ids = tiny_gpt2(), random_ids(1, 6)
    found = trace(model, ids)
    point = found._point(0, -1)
    assert torch.equal(point.unembed(point.state(-1)), model(ids)[0, -1])
    unscaled = torch.nn.functional.layer_norm(found["2.stream"], (32,)) @ model.W_U.T
    assert (unscaled - model(ids)).abs().max() > 0.1


def test_top_gives_the_most_probable_tokens():
    model, ids = tiny_gpt2(), random_ids(1, 6)
    table = trace(model, ids).top(4, position=2)
    chances = model(ids)[0, 2].softmax(-1)
    best = chances.sort(descending=True)
    assert list(table.column("id")) == best.indices[:4].tolist()
    assert table.column("probability") == pytest.approx(best.values[:4].tolist(), abs=1e-12)
    with pytest.raises(ValueError, match=r"1\.\.50 .*got 0"):
        trace(model, ids).top(0)

"""A feed-forward layer at one token, against the run's sites, the ledger and formulas."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from any_edits import some_edits
from pellucid.inside.edits import zero
from pellucid.inside.neuron_weights import promoted, reads, write_norm
from pellucid.inside.shown.ffn import ffn
from pellucid.inside.shown.neuron_reading import neuron_reading
from pellucid.model.config import Gelu, GeluTanh, MaskedLanguage, Parallel, PostNorm, Relu, Silu, SwiGLU
from pellucid.views.packing import unpacked
from tiny import VOCAB, build, configs, random_ids, tiny_gpt2, traced


def shown(run, layer, **asked):
    packed = ffn(run, layer, **asked)
    return packed.meta, {array.name: (unpacked(array), array.error) for array in packed.arrays}


def run_of(config, data, edited=True):
    model = build(config)
    run = traced(model, random_ids(1, 5))
    if edited and data.draw(st.booleans()):
        run = run.edit(*some_edits(data.draw, model, traced(model, random_ids(1, 5, seed=9))))
    return run


@settings(max_examples=7)
@given(configs(), st.data())
def test_the_numbers_are_the_sites(config, data):
    run = run_of(config, data)
    layer, position = data.draw(st.integers(0, config.n_layers - 1)), data.draw(st.integers(-5, 4))
    name = f"{run.transformer.prefix}{layer}.ffn"
    meta, arrays = shown(run, layer, position=position)
    sites = {"up": "up", "neurons": "neurons", **({"gate": "gate"} if config.gated else {})}
    assert set(arrays) == {*sites, "at", "curve"}
    for array, site in sites.items():
        values, error = arrays[array]
        expected = run[f"{name}.{site}"][0, position].numpy()
        assert np.abs(values.astype(np.float64) - expected).max() <= error <= 1e-7 * np.abs(expected).max()
    neurons = run[f"{name}.neurons"][0]
    here = neurons[position]
    norms = [write_norm(run.transformer, layer, neuron) for neuron in range(config.d_ff)]
    sizes = here.abs() * torch.tensor(norms, dtype=torch.float64)
    rows = meta["strongest"]
    assert [row["size"] for row in rows] == pytest.approx(sizes.sort(descending=True).values[:8].tolist())
    for row in rows:
        for cell in ("up", "gate"):
            value = run[f"{name}.{cell}"][0, position, row["neuron"]] if cell in sites else None
            assert row[cell] == (None if value is None else float(value))
        assert row["value"] == float(here[row["neuron"]])
        assert row["write"] == pytest.approx(norms[row["neuron"]])
        assert row["effect"] is None
    assert meta["update"] == pytest.approx(float(run[f"{name}.update"][0, position].norm()))
    assert meta["site"] == f"{name}.neurons"
    assert meta["gated"] == config.gated
    assert meta["position"] == position % 5
    assert_counts(meta["counts"], neurons.numpy(), here.numpy(), sizes.numpy())


def assert_counts(counts, everywhere, here, sizes):
    assert counts["neurons"] == len(here)
    assert counts["tokens"] == len(everywhere)
    assert counts["active"] == (here > 0).sum()
    assert counts["zero"] == (here == 0).sum()
    assert counts["share"] == pytest.approx((everywhere > 0).mean())
    assert counts["silent"] == ((everywhere > 0).sum(0) == 0).sum()
    assert counts["always"] == ((everywhere > 0).sum(0) == len(everywhere)).sum()
    ordered = np.sort(sizes)[::-1]
    half = counts["half"]
    assert ordered[:half].sum() >= sizes.sum() / 2 - 1e-9
    assert ordered[: half - 1].sum() <= sizes.sum() / 2 + 1e-9


@settings(max_examples=6)
@given(configs(), st.data())
def test_effects_on_a_token_are_the_ledgers(config, data):
    run = run_of(config, data)
    layer, token, prefix = data.draw(st.integers(0, config.n_layers - 1)), 7, run.transformer.prefix
    meta, _ = shown(run, layer, position=3, k=config.d_ff, token=token)
    if run.transformer.head is None:
        ledger = run.ledger(token, by="neuron", position=3)
    else:
        ledger = run.ledger(direction=run.direction(token, position=3), by="neuron", position=3)
    entries, name = dict(ledger.entries), f"{prefix}{layer}.ffn neuron "
    expected = [entries[f"{name}{neuron}"] for neuron in range(config.d_ff)]
    found = {row["neuron"]: row["effect"] for row in meta["strongest"]}
    assert [found[neuron] for neuron in range(config.d_ff)] == pytest.approx(expected, abs=1e-10)
    sizes = [abs(row["effect"]) for row in meta["strongest"]]
    assert sizes == sorted(sizes, reverse=True)
    assert meta["token"] == {"id": 7, "text": "7"}


@settings(max_examples=6)
@given(configs(), st.data())
def test_the_words_are_those_of_its_weights_turned_by_the_values_sign(config, data):
    run = run_of(config, data, edited=False)
    layer = data.draw(st.integers(0, config.n_layers - 1))
    for row in shown(run, layer)[0]["strongest"]:
        if isinstance(config.head, MaskedLanguage):
            assert row["raises"] is row["lowers"] is None
            continue
        table = promoted(run.transformer, layer, row["neuron"], 4)
        raised, lowered = list(table.column("promotes")), list(table.column("suppresses"))
        if row["value"] < 0:
            raised, lowered = lowered, raised
        assert (row["raises"], row["lowers"]) == (raised, lowered)


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        (Gelu(), lambda z: z * 0.5 * (1 + math.erf(z / math.sqrt(2)))),
        (GeluTanh(), lambda z: 0.5 * z * (1 + math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))),
        (Relu(), lambda z: max(z, 0.0)),
        (Silu(), lambda z: z / (1 + math.exp(-z))),
        (SwiGLU(), lambda z: z / (1 + math.exp(-z))),
    ],
)
def test_the_curve_is_the_models_activation_as_far_as_its_numbers_reach(activation, formula):
    run = traced(tiny_gpt2(activation=activation), random_ids(1, 4))
    meta, arrays = shown(run, 1, position=0)
    at, curve = arrays["at"][0], arrays["curve"][0]
    before = run["1.ffn.gate" if meta["gated"] else "1.ffn.up"][0, 0]
    assert at[0] == pytest.approx(min(float(before.min()), -4.0))
    assert at[-1] == pytest.approx(max(float(before.max()), 4.0))
    assert (np.diff(at) > 0).all()
    np.testing.assert_allclose(curve, [formula(z) for z in at.tolist()], atol=1e-6)
    assert meta["activation"] == type(activation).__name__
    neurons = run["1.ffn.neurons"][0, 0]
    if not meta["gated"]:  # then the dots (pre-activation, value) lie on the curve
        np.testing.assert_allclose(neurons, [formula(z) for z in before.tolist()], atol=1e-12)


def test_a_neuron_that_is_switched_off_is_zero_and_last():
    run = traced(tiny_gpt2(activation=Relu(), d_ff=64), random_ids(1, 4))
    strongest = shown(run, 1, token=3, k=64)[0]["strongest"][0]["neuron"]
    edited = run.edit(zero("1.ffn.neurons", neuron=strongest))
    meta, _ = shown(edited, 1, token=3, k=64)
    row = next(row for row in meta["strongest"] if row["neuron"] == strongest)
    assert (row["value"], row["effect"], row["size"]) == (0.0, 0.0, 0.0)
    assert row["up"] > 0
    assert meta["edited"] == ["1.ffn.neurons"]
    assert meta["counts"]["zero"] == int((edited["1.ffn.neurons"][0, -1] == 0).sum()) > 1


def test_a_model_without_logits_has_neurons_without_words():
    model = build(replace(tiny_gpt2().config, head=None))
    run = traced(model, random_ids(1, 4))
    assert shown(run, 0)[0]["strongest"][0]["raises"] is None
    with pytest.raises(ValueError, match="no logits"):
        ffn(run, 0, token=3)
    assert neuron_reading(model, None, 0, 5)["promoted"] is None
    assert "no logits" in neuron_reading(model, None, 0, 5)["note"]


@pytest.mark.parametrize("changes", [{}, {"block": PostNorm()}, {"block": Parallel(1), "activation": SwiGLU()}])
def test_a_neurons_reading_is_the_librarys(changes):
    model = tiny_gpt2(**changes)
    found = neuron_reading(model, None, 1, 9, 6)
    assert found["promoted"] == promoted(model, 1, 9, 6).to_json()
    assert found["reads"] == reads(model, 1, 9, 6).to_json()
    assert found["write"] == write_norm(model, 1, 9)
    assert (found["layer"], found["neuron"]) == (1, 9)
    assert "activation stands between" in neuron_reading(tiny_gpt2(head=MaskedLanguage()), None, 1, 9)["note"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"layer": 2}, r"layers 0\.\.1, got 2"),
        ({"layer": -1}, r"layers 0\.\.1, got -1"),
        ({"layer": 0, "k": 0}, r"k must lie in 1\.\.100, got 0"),
        ({"layer": 0, "position": 4}, r"positions 0\.\.3, got position=4"),
        ({"layer": 0, "token": VOCAB}, r"0\.\.49, got 50"),
        ({"layer": 0, "token": -2}, r"0\.\.49, got -2"),
    ],
)
def test_what_is_not_there(asked, said):
    run = traced(tiny_gpt2(), random_ids(1, 4))
    with pytest.raises(ValueError, match=said):
        ffn(run, **asked)

"""The feed-forward layer's numbers, against the error function, published sizes and plain counts."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.lessons.ffn import dead_units, dead_units_on, gated, gelu, position_wise_on, tanh_off
from pellucid.model.config import SwiGLU
from tiny import build, configs, random_ids, tiny_gpt2, traced


def phi(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def cdf(x: float) -> float:
    return (1 + math.erf(x / math.sqrt(2))) / 2


@given(st.lists(st.floats(-8, 8), min_size=1, max_size=5))
def test_activations_and_gradients_are_their_formulas(grid):
    (table,) = gelu(grid).tables
    for x, relu, exact, tanh, d_relu, d_exact, _ in table:
        assert relu == max(x, 0.0)
        assert d_relu == float(x > 0)
        assert exact == pytest.approx(x * cdf(x), abs=1e-12)
        assert d_exact == pytest.approx(cdf(x) + x * phi(x), abs=1e-12)
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        assert tanh == pytest.approx(0.5 * x * (1 + math.tanh(inner)), abs=1e-12)
        assert abs(tanh - exact) <= 4.735e-4


def test_the_tanh_form_is_off_by_what_is_published():
    off, where = tanh_off()
    assert f"{off:.2e}" == "4.73e-04"
    inner = math.sqrt(2 / math.pi) * (where + 0.044715 * where**3)
    assert abs(where * cdf(where) - 0.5 * where * (1 + math.tanh(inner))) == pytest.approx(off)
    assert "at most 4.73e-04" in gelu().tables[0].note


def test_units_that_no_input_wakes_are_dead_under_relu_alone():
    biases = (0.0, -2.0, -4.0)
    (table,) = dead_units(biases, units=100, inputs=200).tables
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(200, 32, generator=draws, dtype=torch.float64).numpy()
    weights = torch.randn(32, 100, generator=draws, dtype=torch.float64).numpy() / math.sqrt(32)
    for bias, share, relu, exact in table:
        z = x @ weights + bias
        assert relu == (z <= 0).all(0).sum()
        assert share == pytest.approx((z > 0).mean())
        assert exact == 0
    assert table.column("dead under ReLU")[0] == 0 < table.column("dead under ReLU")[2]


@pytest.mark.parametrize("activation", ["plain", "gated"])
def test_how_dense_a_models_activity_is(activation):
    changes = {"activation": SwiGLU()} if activation == "gated" else {}
    found = traced(tiny_gpt2(**changes), random_ids(2, 6), torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]]))
    (table,) = dead_units_on(found).tables
    real = np.array([[1] * 6, [0, 0, 1, 1, 1, 1]], bool)
    for layer, share, never, units, strong in table:
        z = found[f"{layer}.ffn.{'gate' if changes else 'up'}"].numpy()[real]
        neurons = np.abs(found[f"{layer}.ffn.neurons"].numpy()[real])
        assert share == pytest.approx((z > 0).mean())
        assert (never, units) == ((z <= 0).all(0).sum(), 128)
        assert strong == pytest.approx((neurons > neurons.max() / 10).mean())


def test_gated_layers_of_published_models():
    (table,) = gated().tables
    rows = {row[0]: row for row in table}
    assert rows["LLaMA 1, 7B"][4:6] == (135_266_304, 134_217_728)
    assert rows["Mistral 7B"][3] == 3.5
    assert rows["PaLM 8B"][3] == 4.0
    for name, *_, ratio in table:
        assert name.startswith("LLaMA 1") == (ratio < 1.02)


@settings(max_examples=6)
@given(configs("decoder").filter(lambda config: config.encoder is None))
def test_in_the_feed_forward_layer_no_position_sees_another(config):
    (table,) = position_wise_on(traced(build(config), random_ids(1, 4))).tables
    assert set(table.column("elsewhere")) == {0.0}
    assert min(table.column("feed-forward: there")) > 0
    assert min(table.column("attention: there")) > 0


def test_attention_does_bring_it_to_others():
    (table,) = position_wise_on(traced(tiny_gpt2(), random_ids(1, 4))).tables
    assert min(table.column("elsewhere ")) > 0.01
    with pytest.raises(ValueError, match="at least two tokens"):
        position_wise_on(traced(tiny_gpt2(), random_ids(1, 1)))

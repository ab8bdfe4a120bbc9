"""Gradients by depth against a published table, and the growth of the stream."""

import numpy as np
import pytest
import torch
from torch import nn

from pellucid.lessons.depth import (
    FORMS,
    gradient_norms,
    layer_gradients,
    pre_and_post_norm,
    rms_by_depth,
    shortcuts,
    stream_growth,
    stream_growth_on,
)
from tiny import random_ids, tiny_gpt2, traced

# Raschka, Build a Large Language Model (From Scratch), section 4.4, as printed there.
WITHOUT = "0.000202 0.000120 0.000715 0.001399 0.005050"
WITH = "0.2217 0.2069 0.3290 0.2666 1.3259"


def test_the_published_table_to_its_last_digit():
    assert " ".join(f"{value:.6f}" for value in layer_gradients(shortcut=False)) == WITHOUT
    assert " ".join(f"{value:.4f}" for value in layer_gradients(shortcut=True)) == WITH


def test_the_lesson_prints_it_beside_what_was_published():
    table, factors = shortcuts().tables
    for measured, published, digits in (("without", "published", 3), ("with shortcuts", "published ", 1)):
        assert [f"{value:.{digits}f}" for value in table.column(measured)] == [
            f"{value:.{digits}f}" for value in table.column(published)
        ]
    assert [f"{1000 * float(value):.3f}" for value in WITHOUT.split()] == [
        f"{value:.3f}" for value in table.column("published")
    ]
    assert [round(factor) for factor in factors.column("factor")] == [25, 6, 1099]
    assert table.note == ""
    assert "seed 1" in shortcuts(seed=1).tables[0].note


def test_random_numbers_of_others_do_not_move():
    torch.manual_seed(9)
    expected = torch.rand(2)
    torch.manual_seed(9)
    shortcuts()
    stream_growth(2)
    assert torch.equal(torch.rand(2), expected)


def test_the_derivative_of_x_plus_f_is_one_plus_that_of_f():
    """Independent of autograd: finite differences of the network written out anew."""
    torch.manual_seed(123)
    layers = [nn.Linear(a, b).double() for a, b in ((3, 3), (3, 3), (3, 3), (3, 3), (3, 1))]

    def loss(first: torch.Tensor) -> float:
        x = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)
        for at, layer in enumerate(layers):
            z = (first if at == 0 else layer.weight) @ x + layer.bias
            y = 0.5 * z * (1 + torch.tanh((2 / np.pi) ** 0.5 * (z + 0.044715 * z**3)))
            x = x + y if at < 4 else y
        return float((x @ x).detach())

    weight, slopes = layers[0].weight.detach(), []
    for at in range(9):
        step = torch.zeros(9, dtype=torch.float64)
        step[at] = 1e-5
        slopes.append((loss(weight + step.view(3, 3)) - loss(weight - step.view(3, 3))) / 2e-5)
    assert np.abs(slopes).mean() == pytest.approx(layer_gradients(True)[0], rel=1e-4)


def test_gradients_at_the_start_are_large_near_the_output_in_post_norm():
    table, by_depth = pre_and_post_norm(layers=6, depths=(2, 8)).tables
    assert table.columns == ("block", "pre-norm", "post-norm")
    (two, pre_two, _, post_two, _), (eight, pre_eight, scaled, post_eight, ratio) = by_depth.rows
    assert (two, eight) == (2, 8)
    assert pre_eight < 0.8 * pre_two
    assert post_eight > post_two
    assert ratio == post_eight / pre_eight > 2
    assert scaled == pytest.approx(pre_eight * 8**0.5)
    assert table.column("post-norm")[-1] > 2 * table.column("pre-norm")[-1]
    assert table.column("pre-norm") == tuple(gradient_norms(FORMS["pre-norm"], 6))


def test_the_stream_grows_where_nothing_norms_it():
    (table,) = stream_growth(layers=6).tables
    grown, normed = table.column("pre-norm"), table.column("post-norm")
    assert list(grown) == sorted(grown)
    assert grown[-1] > 1.5 * grown[0]
    np.testing.assert_allclose(normed[1:], 1.0, atol=1e-4)


def test_growth_on_a_text_is_the_norm_of_its_states():
    found = traced(tiny_gpt2(), random_ids(2, 5), torch.tensor([[0, 1, 1, 1, 1], [1] * 5]))
    (table,) = stream_growth_on(found).tables
    for (_, first, others), state in zip(table, found.states, strict=True):
        norms = np.linalg.norm(state[0, 1:].numpy(), axis=-1)
        assert first == pytest.approx(norms[0])
        assert others == pytest.approx(norms[1:].mean())
    squares = [np.square(state.numpy())[[0] * 4 + [1] * 5, [1, 2, 3, 4, 0, 1, 2, 3, 4]] for state in found.states]
    np.testing.assert_allclose(rms_by_depth(found), [np.sqrt(each.mean()) for each in squares])
    alone = stream_growth_on(traced(tiny_gpt2(), random_ids(1, 1)))
    assert alone.tables[0].rows[0][2] is None
    assert len(alone.figure.series) == 1

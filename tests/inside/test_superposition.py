"""How directions lie, and the toy model that learns more of them than it has dimensions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pellucid.inside import superposition
from pellucid.inside.superposition import random_shares, spread_of
from pellucid.inside.toy_superposition import ToyModel, ToySettings, toy_model


@given(st.integers(2, 7), st.integers(2, 5), st.integers(0, 9))
def test_cosines_are_counted_pair_by_pair(n, d, seed):
    directions = np.random.default_rng(seed).normal(size=(n, d))
    found = spread_of(torch.tensor(directions), bins=8)
    cosines = [
        a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        for i, a in enumerate(directions)
        for j, b in enumerate(directions)
        if i != j
    ]
    assert found.mean_square == pytest.approx(np.mean(np.square(cosines)))
    assert found.largest == pytest.approx(np.max(np.abs(cosines)))
    np.testing.assert_allclose(found.shares, np.histogram(cosines, 8, (-1, 1))[0] / len(cosines))
    unit = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    assert found.effective == pytest.approx(n**2 / np.square(unit @ unit.T).sum())
    assert found.least <= found.mean_square + 1e-12


def test_chunks_of_directions_change_nothing(monkeypatch):
    directions = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    whole = spread_of(directions)
    monkeypatch.setattr(superposition, "_CHUNK", 7)
    parts = spread_of(directions)
    assert parts.shares == whole.shares
    assert parts.mean_square == pytest.approx(whole.mean_square)


def test_known_sets_of_directions():
    square = spread_of(torch.eye(4))
    assert (square.mean_square, square.least, square.effective, square.per_dimension) == (0.0, 0.0, 4.0, 1.0)
    angles = torch.arange(3) * 2 * math.pi / 3  # three in a plane, as far apart as can be
    spread = spread_of(torch.stack([angles.cos(), angles.sin()], 1))
    assert spread.mean_square == pytest.approx(0.25)
    assert spread.least == pytest.approx(0.25)  # Welch's bound: (3 - 2) / (2 x 2)
    assert spread.effective == pytest.approx(2.0)
    assert spread_of(torch.tensor([[1.0, 0, 0], [0, 0, 0], [0, 3, 0]])).n == 2  # zero is no direction
    with pytest.raises(ValueError, match="at least 2 directions"):
        spread_of(torch.ones(1, 3))


@pytest.mark.parametrize("bins", [1, 6, 20])
def test_random_directions_are_as_they_are_known_to_be(bins):
    edges = np.linspace(-1, 1, bins + 1)
    np.testing.assert_allclose(random_shares(3, bins), np.diff(edges) / 2, atol=1e-6)  # Archimedes: uniform on a sphere
    arc = np.diff(-np.arccos(edges)) / math.pi
    np.testing.assert_allclose(random_shares(2, bins), arc, atol=1e-6)
    semicircle = np.diff(edges * np.sqrt(1 - edges**2) + np.arcsin(edges)) / math.pi
    np.testing.assert_allclose(random_shares(4, bins), semicircle, atol=1e-6)


def test_random_directions_have_the_mean_square_that_is_expected_of_them():
    directions = torch.randn(400, 64, generator=torch.Generator().manual_seed(1))
    found = spread_of(directions)
    assert found.mean_square == pytest.approx(found.random, rel=0.02)
    assert np.abs(np.subtract(found.shares, found.expected)).max() < 0.005


# --- The toy model ---


def learned(**changes) -> ToyModel:
    return toy_model(ToySettings(**changes))


def test_dense_features_get_a_dimension_each_and_only_the_most_important_do():
    model = learned(sparsity=0.0, decay=0.7, steps=800)
    assert model.stored == model.settings.dimensions == 5
    assert bool((model.norms[:5] - 1).abs().max() < 0.05)
    assert bool((model.norms[5:] < 0.1).all())
    assert bool((model.dimensionality[:5] - 1).abs().max() < 0.05)
    # what is not kept is answered with its mean, 1/2; its error is then 1/12, the variance of a uniform number
    assert bool((model.bias[5:] - 0.5).abs().max() < 0.05)
    assert model.loss == pytest.approx(float(model.settings.importance[5:].sum()) / 12, rel=0.1)


def test_sparse_features_share_dimensions():
    model = learned(sparsity=0.97, steps=800)
    assert model.stored > 2 * model.settings.dimensions
    assert float(model.dimensionality[model.norms > 0.5].max()) < 0.5
    assert float(model.dimensionality.sum()) == pytest.approx(5, rel=0.05)  # together they fill the space


def test_five_features_in_a_plane_become_a_pentagon():
    model = learned(features=5, dimensions=2, sparsity=0.9, decay=1.0, steps=800)
    turn = np.sort(np.arctan2(*model.W.numpy()))
    np.testing.assert_allclose(np.diff(np.append(turn, turn[0] + 2 * np.pi)), 2 * np.pi / 5, atol=0.06)
    np.testing.assert_allclose(model.dimensionality, 2 / 5, atol=0.02)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 9))
def test_dimensionality_is_its_formula(n, m, seed):
    W = np.random.default_rng(seed).normal(size=(m, n))
    W[:, 0] = 0
    model = ToyModel(ToySettings(n, m), torch.tensor(W), torch.zeros(n, dtype=torch.float64), 0.0)
    for i in range(n):
        norm = np.sqrt((W[:, i] ** 2).sum())
        share = 0.0 if norm == 0 else norm**2 / sum((W[:, i] / norm @ W[:, j]) ** 2 for j in range(n))
        assert float(model.dimensionality[i]) == pytest.approx(share)
        assert float(model.norms[i]) == pytest.approx(norm)
    assert model.table().column("importance") == pytest.approx([0.9**i for i in range(n)])


def test_the_same_seed_learns_the_same_and_leaves_everyone_elses_numbers_alone():
    torch.manual_seed(5)
    one, expected = learned(steps=20), torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(one.W, learned(steps=20).W)
    assert not torch.equal(one.W, learned(steps=20, seed=1).W)


@pytest.mark.parametrize(
    ("change", "said"),
    [({"sparsity": 1.0}, r"\[0, 1\), got 1.0"), ({"decay": 0.0}, r"\(0, 1\], got 0.0"), ({"features": 0}, "features")],
)
def test_settings_that_make_no_sense(change, said):
    with pytest.raises(ValueError, match=said):
        ToySettings(**change)

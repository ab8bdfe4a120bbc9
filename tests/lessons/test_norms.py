"""Layer norm and its relatives, step by step, against torch's own and against plain formulas."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.lessons.norms import EXAMPLE, batch_norm, layer_norm, layer_norm_on, rms_norm, steps, undone
from pellucid.model.config import Parallel, PostNorm, RMSNorm
from tiny import build, configs, random_ids, tiny_gpt2, traced

VECTORS = st.lists(st.floats(-100, 100), min_size=2, max_size=8).filter(lambda x: np.std(x) > 1e-3)


def test_the_worked_example():
    (table,) = layer_norm().tables
    assert EXAMPLE == (2, 4, 4, 4, 5, 5, 7, 9)
    assert table.column("result") == (-1.5, -0.5, -0.5, -0.5, 0, 0, 1, 2)
    assert table.column("x - mean") == (-3, -1, -1, -1, 0, 0, 2, 4)
    assert table.column("squared") == (9, 1, 1, 1, 0, 0, 4, 16)
    assert table.column("undone") == EXAMPLE
    assert "mean 5, variance 4," in table.note


@given(VECTORS, st.sampled_from([0.0, 1e-5, 0.1]))
def test_steps_are_torchs_layer_norm(x, eps):
    gain, shift = torch.linspace(0.5, 2, len(x)).double(), torch.linspace(-1, 1, len(x)).double()
    expected = F.layer_norm(torch.tensor(x, dtype=torch.float64), (len(x),), gain, shift, eps)
    found = steps(x, gain, shift, eps)
    torch.testing.assert_close(found.result, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(undone(found), torch.tensor(x, dtype=torch.float64), rtol=1e-9, atol=1e-9)
    assert found.variance == pytest.approx(np.var(x))


@given(VECTORS)
def test_rms_norm_is_its_formula_and_layer_norm_does_not_see_a_number_added_to_all(x):
    (table,) = rms_norm(x).tables
    np.testing.assert_allclose(table.column("RMSNorm"), np.array(x) / np.sqrt(np.mean(np.square(x))))
    moved = np.array(x) + 10
    np.testing.assert_allclose([row[3] for row in table], moved / np.sqrt(np.mean(np.square(moved))))
    np.testing.assert_allclose([row[5] for row in table], table.column("layer norm"), rtol=1e-6, atol=1e-6)


def test_another_example_changes_batch_norm_and_not_layer_norm():
    (table,) = batch_norm().tables
    layer, other_layer, batch, other_batch = (np.array([row[at] for row in table]) for at in range(2, 6))
    assert np.array_equal(layer, other_layer)
    assert np.abs(batch - other_batch).max() > 0.1
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).numpy()
    np.testing.assert_allclose(layer, (x[0] - x[0].mean()) / np.sqrt(x[0].var() + 1e-5))
    np.testing.assert_allclose(batch, ((x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5))[0])


@settings(max_examples=8)
@given(configs("decoder").filter(lambda config: config.encoder is None))
def test_the_steps_are_those_of_the_models_own_norm(config):
    (table,) = layer_norm_on(traced(build(config), random_ids(2, 5))).tables
    assert float(table.note.rpartition("at most ")[2].partition(" ")[0]) < 1e-12
    assert table.title.startswith("RMSNorm" if isinstance(config.norm, RMSNorm) else "layer norm")


@pytest.mark.parametrize(
    ("block", "read"), [(PostNorm(), "0.attention.sum"), (Parallel(1), "0.stream"), (Parallel(2), "0.stream")]
)
def test_the_norm_that_is_shown_is_where_the_model_has_it(block, read):
    found = traced(tiny_gpt2(block=block), random_ids(1, 5))
    (table,) = layer_norm_on(found).tables
    assert table.title.endswith(read)
    assert table.column("x") == tuple(found[read][0, -1, :8].tolist())
    assert "The first 8 of 32 features." in table.note


@pytest.mark.parametrize(
    ("x", "said"),
    [((3.0, 3.0), "all numbers are equal"), ((), "one vector"), ((1.0, float("nan")), "one vector of finite numbers")],
)
def test_what_has_no_norm(x, said):
    with pytest.raises(ValueError, match=said):
        layer_norm(x)


def test_a_vector_of_zeros_has_no_rms_norm():
    with pytest.raises(ValueError, match="all numbers are zero"):
        rms_norm((0.0, 0.0))

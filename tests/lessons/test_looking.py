"""The claims about the inside: each is what its tool says, and right where the truth is known."""

import math

import numpy as np
import pytest
import torch

from pellucid.inside.circuit_by_hand import START, induction_circuit
from pellucid.inside.geometry import kept, step_lengths, trajectory, write_norms
from pellucid.inside.superposition import spread_of
from pellucid.inside.trace import trace
from pellucid.lessons import looking
from pellucid.lessons.small import random_trace
from pellucid.model.config import PostNorm
from tiny import random_ids, tiny_gpt2, traced


@pytest.fixture(scope="module")
def found():
    return traced(tiny_gpt2(), random_ids(1, 6))


def test_depths_and_contributions_are_the_traces_own(found):
    assert looking.lens_on(found).tables[0].rows == found.lens().rows
    (table,) = looking.contributions_on(found).tables
    best = int(found["logits"][0, -1].argmax())
    assert sum(table.column("amount")) == pytest.approx(float(found["logits"][0, -1, best]))


def test_what_becomes_of_each_write(found):
    (table,) = looking.cancelling_on(found).tables
    shares = kept(found).values[:, 1:]
    assert table.column("share kept") == tuple(shares.median(1).values.tolist())
    assert table.column("tokens that lose half") == tuple((shares < 0.5).double().mean(1).tolist())
    assert table.rows[-1][1] == 1.0  # nothing follows the last one
    x, update = found["0.stream"][0], found["0.attention.update"][0]
    cosine = torch.nn.functional.cosine_similarity(x, update, dim=-1).mean()
    assert table.rows[1][3:] == (pytest.approx(float(cosine)), pytest.approx(float(cosine)))
    with pytest.raises(ValueError, match="post-norm"):
        looking.cancelling_on(traced(tiny_gpt2(block=PostNorm()), random_ids(1, 4)))


def test_steps_of_the_path(found):
    result = looking.trajectory_on(found)
    (table,) = result.tables
    np.testing.assert_allclose(table.column("step"), step_lengths(found).values[:, 1:].mean(1))
    relative = step_lengths(found, relative=True).values[:, 1:].mean(1)
    np.testing.assert_allclose(table.column("relative to the state"), relative)
    assert table.column("angle to the step before")[0] is None
    assert torch.equal(result.figure.path.points, trajectory(found, first=1).points)


def test_how_much_each_block_does_to_each_token(found):
    parts, tokens = looking.depth_used_on(found).tables
    sizes = write_norms(found).values[:, 1:].numpy()
    np.testing.assert_allclose([row[1:] for row in parts], np.stack([sizes.mean(1), sizes.min(1), sizes.max(1)], 1))
    np.testing.assert_allclose([row[1] for row in tokens], (sizes / (1 + sizes)).sum(0))
    assert tokens.rows[0][0] == f"1 {found.tokens()[1]}"


def test_the_strongest_neurons_with_what_they_read_and_promote(found):
    first, *others = looking.key_value_on(found).tables
    assert len(others) == 2 * len(first)
    for layer, neuron, value, median in first:
        values = found[f"{layer}.ffn.neurons"][0, -1]
        assert value == values.abs().max() * values[neuron].sign()
        assert median == float(values.abs().median())
    assert others[0].title == f"neuron {first.rows[0][0]}.{first.rows[0][1]} reads"


def test_directions_of_neurons(found):
    (table,) = looking.superposition_on(found).tables
    spread = spread_of(found.transformer.blocks[1].ffn.down.weight.T)
    assert table.rows[1][1:5] == (128, 32, spread.mean_square, 1 / 32)


def test_heads_of_a_known_circuit_are_named():
    circuit = induction_circuit()
    ids = torch.tensor([[START, 3, 4, 5, 3, 4, 5]])
    (table,) = looking.specialise_on(trace(circuit, ids)).tables
    rows = {row[0]: (row[1], row[3]) for row in table}
    assert rows["induction"] == (1, "1.0")
    assert rows["previous token"][1].startswith("0.1")


def test_induction_needs_both_heads():
    table, card = looking.induction().tables
    rows = {row[0]: row[1:] for row in table}
    assert rows["whole"][0] < 1e-6
    assert rows["whole"][1] == 1.0
    for without in ("without the previous-token head", "without the induction head"):
        assert rows[without][0] == pytest.approx(math.log(32), abs=1e-3)
        assert rows[without][1] < 0.1
    assert dict(row[:2] for row in card)["induction"] == 1


@pytest.mark.slow
def test_the_sparser_features_are_the_more_of_them_fit():
    table, last = looking.toy_model(600, sparsities=(0.0, 0.9, 0.99)).tables
    stored = table.column("features stored")
    assert 5 == stored[0] < stored[1] < stored[2]
    assert stored[-1] > 10
    assert last.column("importance")[:2] == (1.0, 0.9)


def test_random_traces_are_the_same_every_time():
    assert torch.equal(random_trace(3).states[-1], random_trace(3).states[-1])

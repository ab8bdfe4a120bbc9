"""Scores of edges by gradients: slopes of the engine, exact where the model is linear, complete over the embeddings."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.inside.test_edges import LEFT, RIGHT, prenorm, two
from tests.inside.test_path_patching import linear
from tests.tiny import random_ids, tiny_gpt2, traced

from pellucid.inside.eap import edge_scores
from pellucid.inside.edges import Wiring
from pellucid.inside.edits import set_to
from pellucid.inside.errors import GraphError, MetricError
from pellucid.inside.metrics import Metric, logit, loss
from pellucid.inside.path_patching import path_patch
from pellucid.model.config import Init

METRIC = logit(3, minus=7)


@given(prenorm(), st.sampled_from([None, LEFT, RIGHT]), st.integers(0, 9))
@settings(max_examples=6)
def test_a_score_is_the_slope_of_patching_its_edge(config, mask, seed):
    base, source = two(config, mask)
    scores = edge_scores(base, source, METRIC).values
    wiring = Wiring(base, source, METRIC)
    exists = wiring.graph.exists
    assert torch.equal(scores.isnan(), ~exists)
    edges = exists.nonzero()
    draw = torch.randperm(len(edges), generator=torch.Generator().manual_seed(seed))[:8]
    masks = torch.zeros(len(draw), *exists.shape, dtype=torch.float64)
    masks[torch.arange(len(draw)), edges[draw, 0], edges[draw, 1]] = 1.0
    step = 1e-5
    slopes = (wiring.mean(step * masks) - wiring.mean(-step * masks)) / (2 * step)
    torch.testing.assert_close(scores[edges[draw, 0], edges[draw, 1]], slopes, rtol=1e-4, atol=1e-6)


def test_a_score_is_the_effect_where_the_model_is_linear():
    base, source = linear(0)
    effects = path_patch(base, source, METRIC)
    assert effects.base is not None
    assert effects.source is not None
    for points in (0, 3):
        scores = edge_scores(base, source, METRIC, points).values.nan_to_num(0.0)
        torch.testing.assert_close(scores, effects.values * (effects.source - effects.base), rtol=1e-9, atol=1e-9)


def test_integrated_scores_out_of_the_embeddings_add_up_to_the_difference():
    model = tiny_gpt2(init=Init(0.2))
    base, source = (traced(model, random_ids(2, 6, seed)) for seed in (1, 2))
    metric = loss([4, 9], [2, 5])
    difference = float((metric.of(source) - metric.of(base)).mean())
    found = [edge_scores(base, source, metric, points).values for points in (0, 8, 32)]
    plain, some, more = (abs(float(values[0].sum()) - difference) for values in found)
    assert more < 1e-3 * abs(difference)
    assert more < some / 10 < plain / 100  # the midpoint rule: a quarter of the step, a sixteenth of the error
    # the stream does not go straight from one run to the other before the end
    assert abs(float(found[2][:, -1].sum()) - difference) > 10 * more


def test_the_check_stands_beside_the_score():
    model = tiny_gpt2()
    base, source = (traced(model, random_ids(2, 6, seed)) for seed in (1, 2))
    scores = edge_scores(base, source, METRIC, check=5)
    top = scores.top(5)
    assert top.columns == ("sender", "receiver", "score", "slope", "patched")
    assert top.column("slope") == pytest.approx(top.column("score"), rel=1e-5)
    wiring = Wiring(base, source, METRIC)
    for sender, receiver, score, _, patched in top:
        mask = wiring.graph.mask([(sender, receiver)]).double()[None]
        assert patched == pytest.approx(float(wiring.mean(mask) - wiring.mean(0 * mask)))
        assert scores[sender, receiver] == score
    assert scores.top(6).rows[5][3:] == (None, None)
    assert len(scores.to_json()["checks"]) == 5
    assert "patched" in str(scores)
    assert edge_scores(base, source, METRIC).table().columns == ("sender", "receiver", "score")


def test_small_steps_are_checked_in_single_precision_too():
    model = tiny_gpt2(torch.float32)
    base, source = (traced(model, random_ids(2, 6, seed)) for seed in (1, 2))
    top = edge_scores(base, source, METRIC, check=5).top(5)
    assert top.column("slope") == pytest.approx(top.column("score"), rel=2e-2)


def test_nothing_passes_through_what_an_edit_holds():
    model = tiny_gpt2()
    base, source = (traced(model, random_ids(1, 6, seed)) for seed in (1, 2))
    held = base.edit(set_to("1.attention.query", torch.ones(8).double(), head=2), set_to("1.ffn.input", 0.5))
    scores = edge_scores(held, source, METRIC)
    assert scores["embed", "1.attention.query head 2"] == scores["embed", "1.ffn"] == 0.0
    assert scores["embed", "1.attention.query head 1"] != 0.0


def test_what_has_no_gradient_is_refused():
    model = tiny_gpt2()
    base, source = (traced(model, random_ids(1, 6, seed)) for seed in (1, 2))
    with pytest.raises(MetricError, match="'rank' must be differentiable"):
        edge_scores(base, source, Metric("rank", lambda logits, ids: logits[:, 0].argmax(-1).double()))
    with pytest.raises(GraphError, match="got -1 and 0"):
        edge_scores(base, source, METRIC, points=-1)

"""Metrics: read only where they say, equal to formulas on the full logits, differentiable."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pellucid.inside.edits import scale
from pellucid.inside.errors import MetricError
from pellucid.inside.metrics import Metric, divergence, log_probability, logit, loss, probability
from tiny import VOCAB, build, configs, random_ids, tiny_gpt2, traced


@pytest.mark.slow
@given(configs("decoder"), st.integers(-4, 3))
def test_each_metric_is_its_formula_on_the_full_logits(config, position):
    model = build(config)
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 0]])
    trace = traced(model, random_ids(3, 5), mask)
    logits = torch.stack([trace.by_position("logits", row)[position] for row in range(3)])
    chances = logits.softmax(-1)
    other = torch.stack([trace.by_position("logits", row)[1] for row in range(3)]).softmax(-1)
    expected = {
        logit(3, position=position): logits[:, 3],
        logit(3, minus=7, position=position): logits[:, 3] - logits[:, 7],
        probability(3, position): chances[:, 3],
        log_probability(3, position): chances[:, 3].log(),
        loss([3, 8], [position, 1]): -(chances[:, 3].log() + other[:, 8].log()) / 2,
        divergence(trace, position): (chances[0] * (chances[0] / chances).log()).sum(-1),
    }
    for metric, value in expected.items():
        assert torch.allclose(metric.of(trace), value, rtol=1e-9, atol=1e-12), metric.name


def test_an_edit_of_the_final_norm_is_in_force_where_a_metric_reads():
    trace = traced(tiny_gpt2(), random_ids(1, 5))
    edited = trace.edit(scale("final.normed", 2.0, position=3))
    assert torch.allclose(logit(4, position=3).of(edited), 2 * logit(4, position=3).of(trace))
    assert torch.equal(logit(4, position=2).of(edited), logit(4, position=2).of(trace))


def test_a_metric_of_ones_own_must_give_one_number_a_row():
    trace = traced(tiny_gpt2(), random_ids(2, 5))
    assert Metric("largest", lambda logits, ids: logits[:, 0].amax(-1)).of(trace).shape == (2,)
    with pytest.raises(MetricError, match=r"'all'.*one number a row"):
        Metric("all", lambda logits, ids: logits).of(trace)
    with pytest.raises(MetricError, match="got float"):
        Metric("float", lambda logits, ids: 1.0).of(trace)  # pyright: ignore[reportArgumentType]
    with pytest.raises(MetricError, match="one token for each position"):
        loss([1, 2], [0])
    with pytest.raises(ValueError, match=f"0..{VOCAB - 1}"):
        logit(VOCAB).of(trace)
    with pytest.raises(ValueError, match="position=9"):
        logit(1, position=9).of(trace)

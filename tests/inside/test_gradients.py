"""Gradients by local products, beside ordinary autograd through a pass whose graph is kept."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from any_edits import some_edits
from pellucid.inside.edits import add, knockout, map_with, set_to
from pellucid.inside.errors import SiteError, WeightsChangedError
from pellucid.inside.metrics import Metric, logit, loss
from pellucid.inside.plan import plan
from pellucid.inside.reading import all_sites, chain, state_sites
from pellucid.inside.trace import attached, trace
from tiny import arguments, build, configs, passed, random_ids, tiny_gpt2, traced

LEFT = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
RIGHT = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
ODD = Metric("odd", lambda logits, ids: logits[:, 0, 3] * logits[:, 1, 8].tanh() - logits[:, 0, 5] ** 2, (-1, 0))


def by_autograd(found, mask, metric, row=None):
    """The gradient at every site of a pass that looks at all of them, its graph kept."""
    model, seen = found.transformer, {}

    def keeper(name):
        def keep(value, _place, _keys):
            # a tensor of its own: two sites may pass the same one on
            seen[name] = value.view_as(value) if value.requires_grad else value.detach().requires_grad_()
            return seen[name]

        return keep

    with torch.enable_grad():
        looks = chain(plan(model, found.edits).looks(), {site.name: keeper(site.name) for site in all_sites(model)})
        logits = passed(model, found.ids, mask, looks)
        rows = range(len(logits)) if row is None else [row]
        read = torch.stack([logits[at, metric.columns(found, at)] for at in rows])
        gradients = torch.autograd.grad(
            metric.read(found, read).sum(), list(seen.values()), allow_unused=True, materialize_grads=True
        )
    return dict(zip(seen, gradients, strict=True))


def same(found, expected, ours):
    """The gradients that were read, beside those of the kept graph."""
    for name, gradient in ours.items():
        assert not gradient.requires_grad
        if name not in expected:  # read by no logit
            assert name.endswith(("pooled", "next_sentence"))
            assert gradient.shape == found[name].shape
            assert not gradient.any()
            continue
        assert gradient.shape == expected[name].shape
        size = max(1.0, float(expected[name].abs().max()))
        torch.testing.assert_close(gradient, expected[name], atol=1e-12 * size, rtol=1e-12, msg=name)


@settings(max_examples=12)
@given(configs(), st.sampled_from([None, LEFT, RIGHT]), st.sampled_from([None, 0, 1]))
def test_every_gradient_is_that_of_a_kept_graph(config, mask, row):
    found = traced(build(config), random_ids(2, 5), mask)
    ours = found.gradient(ODD, row).read("*")
    assert list(ours) == found.names
    same(found, by_autograd(found, mask, ODD, row), ours)


@pytest.mark.slow
@settings(max_examples=16)
@given(configs(), st.sampled_from([None, LEFT]), st.data())
def test_edits_are_in_force_in_the_gradients_of_an_edited_trace(config, mask, data):
    model, ids = build(config), random_ids(2, 5)
    edits = some_edits(data.draw, model, traced(model, random_ids(2, 5, seed=9), mask))
    found = traced(model, ids, mask).edit(*edits)
    gradients = found.gradient(ODD)
    some = data.draw(st.lists(st.sampled_from(found.names), min_size=6, max_size=6, unique=True))
    some += [*state_sites(model), *(each.site for each in edits)]
    same(found, by_autograd(found, mask, ODD), {name: gradients[name] for name in some})


def test_a_gradient_is_the_slope_of_the_metric_along_an_edit():
    found, metric = traced(tiny_gpt2(), random_ids(1, 5)), logit(3, minus=4)
    along = torch.randn(32, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for site in ("0.stream", "1.stream.mid", "1.attention.update", "0.ffn.update", "final.normed"):
        step = 1e-6 * along
        up, down = (metric.of(found.edit(add(site, sign * step, position=4))) for sign in (1, -1))
        slope = float(up - down) / 2e-6
        assert slope == pytest.approx(float(found.gradient(metric)[site][0, 4] @ along), rel=1e-7, abs=1e-8)


def test_nothing_flows_back_through_what_an_edit_replaced_and_from_later_positions():
    found, metric = traced(tiny_gpt2(), random_ids(2, 5)), logit(3, position=2)
    gradients = found.gradient(metric, row=1)
    assert gradients["1.stream"][1, :3].abs().min() > 0
    assert not gradients["1.stream"][1, 3:].any()
    assert not gradients["1.stream"][0].any()
    replaced = found.edit(set_to("1.stream", 0.5))
    assert replaced.gradient(metric)["1.stream"][:, :3].abs().min() > 0
    assert not any(replaced.gradient(metric)[site].any() for site in ("0.stream", "0.ffn.neurons", "embed.token"))
    whole = found.edit(map_with("1.stream", torch.ones_like, whole=True))
    assert not whole.gradient(metric)["0.stream.mid"].any()


def test_scores_of_a_query_that_sees_nothing_have_no_gradient():
    found = traced(tiny_gpt2(), random_ids(1, 5)).edit(knockout("1.attention.scores", position=3))
    gradient = found.gradient(logit(3, position=3))["1.attention.scores"]
    assert not gradient.any()  # and no NaN, which would count as something
    gradient = found.gradient(logit(3, position=4))["1.attention.scores"]
    assert gradient[0, :, 4].abs().min() > 0


@pytest.mark.parametrize("site", ["1.attention.pattern", "final.normed", "0.stream"])
def test_gradients_of_other_weights_are_refused(site):
    model = tiny_gpt2()
    found = traced(model, random_ids(1, 5))
    gradients = found.gradient(logit(3))
    with pytest.raises(SiteError, match=r"did you mean '1\.attention\.pattern'"):
        gradients["1.attention.patern"]
    with pytest.raises(ValueError, match=r"rows 0\.\.0, got row=1"):
        found.gradient(logit(3), row=1)
    model.blocks[1].attention.qkv.weight.mul_(2.0)
    model.final_norm.weight.mul_(2.0)
    with pytest.raises(WeightsChangedError):
        found.gradient(logit(3))
    if site != "0.stream":
        with pytest.raises(WeightsChangedError):
            gradients[site]


def test_the_table_of_gradients_is_data():
    gradients = traced(tiny_gpt2(), random_ids(1, 5)).gradient(logit(3))
    norms = [float(state.norm()) for state in gradients.states]
    assert gradients.table().column("norm") == pytest.approx(norms)
    assert gradients.top(2).column("norm") == pytest.approx(sorted(norms, reverse=True)[:2])
    assert gradients.to_json()["title"] == "gradient of logit of 3"
    assert "0.stream.mid" in str(gradients)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        gradients.top(0)


def test_autocast_and_half_precision_are_those_of_the_trace():
    model, ids = tiny_gpt2(), random_ids(1, 5)
    exact = traced(model, ids).gradient(logit(3))["1.stream"]
    found = traced(copy.deepcopy(model).bfloat16(), ids).gradient(logit(3))["1.stream"]
    assert found.dtype == torch.bfloat16
    assert float((found.double() - exact).norm() / exact.norm()) < 0.1
    with torch.autocast("cpu", torch.bfloat16):
        under = traced(copy.deepcopy(model).float(), ids)
    gradients = under.gradient(logit(3))
    assert under["1.attention.query"].dtype == gradients["1.attention.query"].dtype == torch.bfloat16
    assert float((gradients["1.stream"].double() - exact).norm() / exact.norm()) < 0.1


@settings(max_examples=6)
@given(configs(), st.sampled_from([None, RIGHT]))
def test_an_attached_trace_leads_back_to_the_weights_as_a_pass_does(config, mask):
    model, ids = build(config).requires_grad_(True), random_ids(2, 5)
    extra = arguments(config)
    source = None if model.encoder is None else attached(model.encoder, extra["source"], mask)
    found = attached(model, ids, mask, types=extra.get("types"), source=source)
    detached = traced(model, ids, mask)
    assert found.attached
    assert not detached.attached
    assert all(torch.equal(a, b) for a, b in zip(found.states, detached.states, strict=True))
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    ours = torch.autograd.grad(loss([4], [1]).of(found).sum(), weights, allow_unused=True, materialize_grads=True)
    read = torch.stack([passed(model, ids, mask)[row, found.columns(row)[1]] for row in (0, 1)])
    chances = -read.log_softmax(-1)[:, 4].sum()
    theirs = torch.autograd.grad(chances, weights, allow_unused=True, materialize_grads=True)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-11)


def test_ordinary_autograd_by_a_state_and_by_a_site_of_an_attached_trace():
    model, ids = tiny_gpt2(), random_ids(1, 5)  # no weight wants a gradient: the stream itself does
    found, detached = attached(model, ids), trace(model, ids)
    (gradient,) = torch.autograd.grad(logit(3).of(found).sum(), found["1.stream"])
    assert torch.equal(gradient, detached.gradient(logit(3))["1.stream"])
    pattern = found["1.attention.pattern"]
    assert torch.equal(pattern, detached["1.attention.pattern"])
    assert torch.autograd.grad(pattern[0, 0, 4, 0], found["0.stream"])[0].abs().max() > 0
    assert not detached["1.attention.pattern"].requires_grad
    assert not logit(3).of(detached).requires_grad


def test_a_steering_vector_is_trained_through_the_edit_of_an_attached_trace():
    found, metric = attached(tiny_gpt2(), random_ids(1, 5)), logit(3)
    vector = torch.zeros(32, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(metric.of(found.edit(add("1.stream", vector, position=2))).sum(), vector)
    assert torch.allclose(slope, traced(tiny_gpt2(), random_ids(1, 5)).gradient(metric)["1.stream"][0, 2], atol=1e-12)
    higher = found.edit(add("1.stream", (0.01 * slope).detach(), position=2))
    assert metric.of(higher).item() > metric.of(found).item()

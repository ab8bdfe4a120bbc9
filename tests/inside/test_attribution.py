"""Attribution patching beside runs of what it estimates."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.inside.attribution import attribution
from pellucid.inside.edits import Edit, freeze, knockout, patch, scale, zero
from pellucid.inside.effects import Effects
from pellucid.inside.errors import SiteError
from pellucid.inside.gradients import gradients
from pellucid.inside.metrics import logit, probability
from pellucid.inside.reading import all_sites
from pellucid.inside.softmax_scores import one_key_moved
from pellucid.inside.sweep import SweepOptions, sweep
from pellucid.model.config import Config, Init, PostNorm
from tiny import VOCAB, build, configs, passed, random_ids, tiny_gpt2, traced

METRIC = probability(3)


def two(config_or_model, length=5):
    """Traces of two texts that differ in the token at position 1, and more."""
    model = config_or_model if isinstance(config_or_model, torch.nn.Module) else build(config_or_model)
    return traced(model, random_ids(1, length)), traced(model, random_ids(1, length, seed=9))


def value(metric, trace):
    return float(metric.of(trace)[0])


@pytest.mark.slow
@settings(max_examples=8)
@given(configs(), st.data())
def test_the_score_is_the_limit_of_small_patches(config, data):
    base, source = two(config)
    known = [name for name in base.names if base[name].ndim > 1 and not name.endswith(("pooled", "next_sentence"))]
    own = [name for name in known if not name.startswith("encoder.") and ".cross." not in name]
    site = data.draw(st.sampled_from([name for name in own if not name.endswith("logits")]))
    found = attribution(base, source, site, metric=METRIC, normalised=False)
    assert found.rows == (site,)
    assert len(found.columns) == 5
    position = data.draw(st.integers(0, 4))
    mine, theirs = (run.by_position(site)[position] for run in (base, source))
    change = torch.where(mine == theirs, 0.0, theirs - mine)
    size, ends = 1e-5, []
    for sign in (1, -1):
        nudge = Edit("add", site, value=sign * size * change[None], at=(position,))
        ends.append(value(METRIC, base.edit(nudge)))
    assert found[site, position] == pytest.approx((ends[0] - ends[1]) / (2 * size), rel=1e-5, abs=1e-9)


def test_where_the_model_is_linear_the_scores_are_the_effects_of_patches():
    """A logit is linear in the last layer's feed-forward writes once the final norm's scale is held."""
    base, source = two(tiny_gpt2())
    base, metric = base.edit(freeze("final.scale", base)), logit(3, minus=4)
    for site in ("2.stream", "1.ffn.update", "1.ffn.neurons"):
        found = attribution(base, source, site, metric=metric)
        assert isinstance(found, Effects)
        swept = sweep(base, source, site, metric=metric)
        assert torch.allclose(found.values, swept.values, atol=1e-10)
        assert found.columns == swept.columns
        assert (found.base, found.source) == pytest.approx((swept.base, swept.source))
    assert found.values[0, :4].tolist() == [0.0] * 4
    neurons = attribution(base, source, "1.ffn.neurons", metric=metric, each="neuron")
    for neuron in (0, 17, 127):
        patched = value(metric, base.edit(patch("1.ffn.neurons", source, neuron=neuron)))
        assert neurons.raw[0, neuron] == pytest.approx(patched - value(metric, base), abs=1e-12)


def test_the_last_state_before_a_plain_unembedding_is_the_whole_effect():
    base, source = two(build(Config(VOCAB, 16, 1, 24, 3, block=PostNorm(), init=Init(0.4))))
    found = attribution(base, source, "1.stream", metric=logit(3, minus=4))
    assert found.values[0].tolist() == pytest.approx([0, 0, 0, 0, 1])


def test_heads_of_the_last_attention_add_up_as_their_patches_do():
    """Behind the last heads all is linear once the final scale is held and the neurons are silent."""
    base, source = two(tiny_gpt2())
    base = base.edit(freeze("final.scale", base), zero("1.ffn.neurons"))
    metric = logit(3)
    found = attribution(base, source, "1.attention.heads", metric=metric, each="head")
    swept = sweep(base, source, "1.attention.heads", metric=metric)
    assert found.columns == swept.columns == ("0", "1", "2", "3")
    assert torch.allclose(found.values, swept.values, atol=1e-10)
    assert found.names == ("site", "head", "score")


@pytest.mark.slow
@settings(max_examples=4)
@given(configs("causal"), st.sampled_from(["0.stream", "0.attention.heads", "0.ffn.up"]))
def test_integrated_gradients_are_complete_as_points_grow(config, site):
    base, source = two(config)
    prefix = base.transformer.prefix
    gaps = []
    for points in (2, 16):
        found = attribution(base, source, prefix + site, metric=METRIC, points=points, normalised=False)
        ((_, total, patched, gap),) = found.completeness().rows
        whole = value(METRIC, base.edit(patch(prefix + site, source))) - value(METRIC, base)
        assert patched == pytest.approx(whole, abs=1e-12)
        assert gap == pytest.approx(total - whole, abs=1e-12)
        gaps.append(abs(gap))
    assert gaps[1] <= max(gaps[0] / 10, 1e-4)


@pytest.mark.slow
def test_a_whole_state_patched_is_the_source_and_its_integrated_scores_say_so():
    base, source = two(tiny_gpt2())
    found = attribution(base, source, "*.stream", metric=METRIC, points=24)
    for total in found.values.sum(1).tolist():
        assert total == pytest.approx(1.0, abs=0.02)
    plain = attribution(base, source, "*.stream", metric=METRIC).values.sum(1)
    assert (plain - 1).abs().max() > 0.1


def test_a_check_runs_the_largest_scores():
    base, source = two(tiny_gpt2())
    found = attribution(base, source, "*.attention.heads", metric=METRIC, each="head")
    table = found.check(3)
    assert table.columns == ("site", "head", "score", "slope", "patched")
    assert [row[:2] for row in table] == [row[:2] for row in found.top(3)]
    for site, head, score, slope, patched in table:
        assert score == pytest.approx(found[site, head] * (found.source - found.base))
        assert slope == pytest.approx(score, rel=1e-3)
        whole = value(METRIC, base.edit(patch(site, source, head=int(head)))) - value(METRIC, base)
        assert patched == pytest.approx(whole, abs=1e-12)
    ((_, _, _, near, _),) = found.check(1, step=1e-7)
    assert near == pytest.approx(table.rows[0][2], rel=1e-5)


@settings(max_examples=5)
@given(configs("causal"), st.sampled_from(["query", "key"]), st.booleans())
def test_the_softmax_of_queries_and_keys_is_recomputed(config, what, knocked):
    """One query or key replaced, the pattern made anew, and only then the slope."""
    base, source = two(config)
    name = f"{base.transformer.prefix}0.attention"
    if knocked:
        base = base.edit(knockout(f"{name}.scores", key=1, position=3))
    found = attribution(base, source, f"{name}.{what}", metric=METRIC, softmax=True, normalised=False)
    slope, pattern = base.gradient(METRIC)[f"{name}.pattern"], base[f"{name}.pattern"]
    for position in range(5):
        changed = base.edit(patch(f"{name}.{what}", source, position=position))[f"{name}.pattern"]
        assert found.values[0, position] == pytest.approx(float((slope * (changed - pattern)).sum()), abs=1e-10)
    heads = attribution(base, source, f"{name}.{what}", metric=METRIC, each="head", softmax=True, normalised=False)
    assert float(heads.values.sum()) == pytest.approx(float(found.values.sum()), abs=1e-10)


def test_a_softmax_with_one_key_moved_is_exact_where_all_weight_is_on_one_key():
    scores = torch.tensor([[[[800.0, 0.0, 1.0, -torch.inf], [3.0, -torch.inf, -torch.inf, -torch.inf]]]]).double()
    moved = torch.tensor([[[[-900.0, 900.0, 1.5, -torch.inf], [5.0, -torch.inf, -torch.inf, -torch.inf]]]]).double()
    slope = torch.tensor([[[[2.0, -3.0, 5.0, 7.0], [1.0, 2.0, 3.0, 4.0]]]]).double()
    found = one_key_moved(scores, moved, slope)
    for query in range(2):
        for key in range(4):
            one = scores[0, 0, query].clone()
            one[key] = moved[0, 0, query, key]
            expected = float(((one.softmax(0) - scores[0, 0, query].softmax(0)) * slope[0, 0, query]).sum())
            assert float(found[0, 0, query, key]) == pytest.approx(expected, abs=1e-12)


def test_saturated_attention_is_seen_through_the_softmax_alone():
    """A query so sharp that its slope is nothing: the gradient says nothing, the softmax what a patch does."""
    base, source = two(tiny_gpt2())
    base = base.edit(scale("1.attention.query", 1e3))
    blind = attribution(base, source, "1.attention.query", metric=METRIC, normalised=False)
    seeing = attribution(base, source, "1.attention.query", metric=METRIC, normalised=False, softmax=True)
    patched = sweep(
        base, source, "1.attention.query", metric=METRIC, each="position", options=SweepOptions(normalised=False)
    )
    effect = patched["1.attention.query", 4] - patched.base
    assert abs(blind["1.attention.query", 4]) < 1e-3 * abs(effect)
    assert seeing["1.attention.query", 4] == pytest.approx(effect, rel=1.0)


def held(model, ids, metric, layer, site):
    """d metric / d site in a kept graph in which what one layer writes is a constant."""
    seen = {}

    def keep(value, _place, _keys):
        seen[site] = value.detach().requires_grad_()
        return seen[site]

    def stop(value, _place, _keys):
        return value.detach()

    sites = [
        name
        for name in [each.name for each in all_sites(model)]
        if name.startswith(f"{layer}.") and name.endswith(".update")
    ]
    with torch.enable_grad():
        logits = passed(model, ids, None, {site: keep, **dict.fromkeys(sites, stop)})
        return torch.autograd.grad(logits[0, -1].softmax(-1)[3], seen[site])[0]


@settings(max_examples=8)
@given(configs(), st.data())
def test_dropout_is_the_mean_size_of_the_scores_with_each_layer_held(config, data):
    if config.encoder is not None or config.n_layers < 2 or config.head is None:
        return
    base, source = two(config)
    site = data.draw(st.sampled_from(["0.stream", "1.stream"]))
    found = attribution(base, source, site, metric=METRIC, normalised=False, dropout=True)
    change = (source[site] - base[site])[0]
    sizes = [
        (change * held(base.transformer, base.ids, METRIC, layer, site)[0]).sum(-1).abs()
        for layer in range(config.n_layers)
    ]
    assert torch.allclose(found.raw[0], torch.stack(sizes).sum(0) / (config.n_layers - 1), rtol=1e-9, atol=1e-12)


def test_of_two_layers_the_earlier_one_is_scored_with_the_later_one_held():
    """While its own layer is held, nothing of a head is felt; so the score is what goes past the other layer."""
    base, source = two(Config(VOCAB, 8, 2, 16, 2))
    plain = attribution(base, source, "0.attention.heads", metric=METRIC, each="head")
    sizes = attribution(base, source, "0.attention.heads", metric=METRIC, each="head", dropout=True)
    held_each = [gradients(base, METRIC, dropped=layer)["0.attention.heads"] for layer in ("0", "1")]
    assert not held_each[0].any()
    change = source["0.attention.heads"] - base["0.attention.heads"]
    expected = (change * held_each[1]).sum((0, 1, 3)).abs()
    assert torch.allclose(sizes.raw[0], expected, rtol=1e-9)
    assert (sizes.values >= 0).all()
    assert not torch.allclose(sizes.values, plain.values.abs())


def test_rows_and_padding():
    model = tiny_gpt2()
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 1]])
    base, source = (traced(model, random_ids(2, 5, seed=seed), mask) for seed in (1, 9))
    found = attribution(base, source, "*.stream", metric=METRIC, row=1, source_row=1)
    alone = [traced(model, random_ids(2, 5, seed=seed)[1:, 1:]) for seed in (1, 9)]
    assert torch.allclose(found.values, attribution(*alone, "*.stream", metric=METRIC).values, atol=1e-10)
    with pytest.raises(ValueError, match="as many tokens"):
        attribution(base, source, "*.stream", metric=METRIC, row=0, source_row=1)


def test_what_cannot_be_asked_is_refused():
    base, source = two(tiny_gpt2())
    with pytest.raises(SiteError, match=r"0\.stream has no head to go by"):
        attribution(base, source, "0.stream", metric=METRIC, each="head")
    with pytest.raises(ValueError, match="'neuron', got 'layer'"):
        attribution(base, source, "0.stream", metric=METRIC, each="layer")
    with pytest.raises(ValueError, match="points, row, softmax, source_row, got pints"):
        attribution(base, source, "0.stream", metric=METRIC, pints=3)
    with pytest.raises(ValueError, match="got -1"):
        attribution(base, source, "0.stream", metric=METRIC, points=-1)
    with pytest.raises(ValueError, match="leave points out"):
        attribution(base, source, "0.stream", metric=METRIC, points=2, softmax=True)
    with pytest.raises(ValueError, match="in both runs"):
        attribution(base, base, "0.stream", metric=METRIC)
    with pytest.raises(ValueError, match="above 0, got 0"):
        attribution(base, source, "0.stream", metric=METRIC).check(1, step=0.0)
    edited = base.edit(freeze("1.attention.pattern", base))
    with pytest.raises(ValueError, match="pattern was edited"):
        attribution(edited, source, "1.attention.key", metric=METRIC, softmax=True)


def test_the_scores_are_data():
    base, source = two(tiny_gpt2())
    found = attribution(base, source, "*.stream", metric=METRIC)
    data = found.to_json()
    assert data["raw"] == found.raw.tolist()
    assert torch.allclose(found.raw, found.values * (found.source - found.base))
    assert "the base's gradient" in str(found)

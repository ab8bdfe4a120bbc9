"""Norms step by step, against the run's own values and the formula in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from any_edits import some_edits
from pellucid.inside.edits import add, scale, set_to
from pellucid.inside.errors import SiteError, WeightsChangedError
from pellucid.inside.shown.norm import norm, norms
from pellucid.model.config import Config, LayerNorm, MaskedLanguage, Parallel, PostNorm, PreNorm, RMSNorm
from pellucid.model.layers import Norm
from pellucid.views.packing import unpacked
from tiny import VOCAB, build, configs, random_ids, tiny_gpt2, traced, with_encoder


def shown(run, site, position=-1):
    packed = norm(run, site, position)
    assert all(array.kind == "float32" for array in packed.arrays)
    return packed.meta, {array.name: unpacked(array) for array in packed.arrays}


def own_norms(model):
    return [part for name, part in model.named_modules() if isinstance(part, Norm) and not name.startswith("encoder.")]


@settings(max_examples=7)
@given(configs(), st.data())
def test_every_norm_step_by_step(config, data):
    """gamma (x - mean) / sqrt(var + eps) + beta, or without mean and shift: each step, and the model's own result."""
    model = build(config)
    run, position = traced(model, random_ids(1, 5)), data.draw(st.integers(-5, 4))
    found = norms(run)["norms"]
    assert len(found) == len(own_norms(model))
    for each, module in zip(found, sorted(own_norms(model), key=order(model)), strict=True):
        meta, steps = shown(run, each["site"], position)
        x = run[each["reads"]][0, position].numpy()
        mean = x.mean() if isinstance(config.norm, LayerNorm) else 0.0
        divided = (x - mean) / np.sqrt(((x - mean) ** 2).mean() + config.norm.eps)
        gained = divided * module.weight.numpy()
        result = gained if module.bias is None else gained + module.bias.numpy()
        expected = {"x": x, "centred": x - mean, "divided": divided, "gained": gained, "result": result}
        for name, value in expected.items():
            np.testing.assert_allclose(steps[name], value, rtol=2e-6, atol=2e-6)
        for name in each["gives"]:
            np.testing.assert_allclose(steps["given"], run[name][0, position].numpy(), rtol=1e-6)
        np.testing.assert_array_equal(steps["gain"], module.weight.numpy().astype(np.float32))
        assert ("shift" in steps) == each["shift"] == (module.bias is not None)
        assert meta["mean"] == pytest.approx(mean, abs=1e-12)
        assert meta["variance"] == pytest.approx(((x - mean) ** 2).mean())
        assert (
            meta["scale"] == pytest.approx(meta["own_scale"]) == pytest.approx(float(run[each["scale"]][0, position]))
        )
        assert meta["eps"] == config.norm.eps
        assert meta["kind"] == type(config.norm).__name__
        assert meta["remainder"] < 1e-10
        assert meta["edited"] == []
        assert meta["position"] == position % 5
        assert meta["norms"]["x"] == pytest.approx(np.sqrt((x**2).sum()))


def order(model):
    """Where a norm stands in the data flow: the embedding's, the layers', the final one, the head's."""
    names = {part: name.split(".") for name, part in model.named_modules() if isinstance(part, Norm)}
    places = {"embed": 0, "blocks": 1, "final_norm": 2, "head": 3}
    parts = {"norm": 0, "attention": 1, "cross": 2, "ffn": 3}

    def place(part):
        first, *rest = names[part]
        return places[first], int(rest[0]) if first == "blocks" else 0, parts[rest[1]] if first == "blocks" else 0

    return place


@pytest.mark.slow
@settings(max_examples=7)
@given(configs(), st.data())
def test_with_edits_it_is_what_the_run_has(config, data):
    model = build(config)
    plain, other = traced(model, random_ids(1, 5)), traced(model, random_ids(1, 5, seed=9))
    run = plain.edit(*some_edits(data.draw, model, other))
    edited = {edit.site for edit in run.edits}
    for each in norms(run)["norms"]:
        meta, steps = shown(run, each["site"], 2)
        np.testing.assert_allclose(steps["x"], run[each["reads"]][0, 2].numpy(), rtol=1e-6)
        np.testing.assert_allclose(steps["given"], run[each["gives"][0]][0, 2].numpy(), rtol=1e-6)
        assert meta["scale"] == pytest.approx(float(run[each["scale"]][0, 2]))
        assert set(meta["edited"]) == edited & {each["reads"], each["scale"], *each["gives"]}
        if not edited & set(each["gives"]):
            assert meta["remainder"] < 1e-10


@pytest.mark.parametrize("kind", [LayerNorm(1e-12), RMSNorm(1e-12)])
def test_the_lessons_vector(kind):
    """[2, 4, 4, 4, 5, 5, 7, 9]: mean 5, variance 4, result [-1.5, -0.5, -0.5, -0.5, 0, 0, 1, 2]; RMS 29^(1/2)."""
    vector = torch.tensor([2.0, 4, 4, 4, 5, 5, 7, 9])
    model = build(Config(VOCAB, 16, 2, 8, 2, norm=kind))
    with torch.no_grad():
        for each in own_norms(model):
            each.weight.fill_(1.0)
            if each.bias is not None:
                each.bias.zero_()
    run = traced(model, random_ids(1, 3)).edit(set_to("1.stream", vector, position=1))
    meta, steps = shown(run, "1.attention.input", 1)
    assert meta["edited"] == ["1.stream"]
    if isinstance(kind, LayerNorm):
        assert (meta["mean"], meta["variance"]) == (5.0, 4.0)
        np.testing.assert_allclose(steps["given"], [-1.5, -0.5, -0.5, -0.5, 0, 0, 1, 2], atol=1e-6)
    else:
        assert (meta["mean"], meta["variance"]) == (0.0, 29.0)
        np.testing.assert_allclose(steps["given"], vector / 29**0.5, atol=1e-6)


def test_the_names_of_every_form():
    def names(**changes):
        return [each["site"] for each in norms(traced(tiny_gpt2(n_layers=1, **changes), random_ids(1, 3)))["norms"]]

    assert names() == ["0.attention.input", "0.ffn.input", "final.normed"]
    assert names(block=PostNorm()) == ["0.attention.sum", "0.ffn.sum"]
    assert names(block=PostNorm(True), embedding_norm=True) == [
        "embed.sum", "0.attention.sum", "0.ffn.sum", "final.normed"
    ]  # fmt: skip
    assert names(block=Parallel(1)) == ["0.attention.input", "final.normed"]
    assert names(block=Parallel(2)) == ["0.attention.input", "0.ffn.input", "final.normed"]
    assert names(block=PostNorm(), head=MaskedLanguage()) == ["0.attention.sum", "0.ffn.sum", "head.normed"]
    crossed = build(with_encoder(replace(tiny_gpt2().config, n_layers=1, block=PreNorm())))
    assert [each["site"] for each in norms(traced(crossed, random_ids(1, 3)))["norms"]] == [
        f"decoder.{name}" for name in ("0.attention.input", "0.cross.input", "0.ffn.input", "final.normed")
    ]


def test_one_norm_that_two_parts_read_goes_by_either_name():
    run = traced(tiny_gpt2(block=Parallel(1)), random_ids(1, 4)).edit(add("1.ffn.input", 2.0))
    first, second = (shown(run, f"1.{part}.input") for part in ("attention", "ffn"))
    np.testing.assert_array_equal(first[1]["result"], second[1]["result"])
    assert first[0]["remainder"] < 1e-10
    assert second[0]["remainder"] == pytest.approx(2.0)
    np.testing.assert_allclose(second[1]["given"], second[1]["result"] + 2, rtol=1e-5, atol=1e-5)


def test_a_scale_that_an_edit_made_stands_beside_its_own():
    run = traced(tiny_gpt2(), random_ids(1, 4)).edit(scale("1.ffn.input.scale", 3.0))
    meta, steps = shown(run, "1.ffn.input")
    assert meta["scale"] == pytest.approx(3 * meta["own_scale"])
    assert meta["remainder"] < 1e-10
    assert meta["edited"] == ["1.ffn.input.scale"]
    np.testing.assert_allclose(steps["divided"], steps["centred"] * meta["scale"], rtol=1e-5)


def test_what_is_not_there():
    run = traced(tiny_gpt2(), random_ids(1, 4))
    with pytest.raises(SiteError, match=r"did you mean '1\.ffn\.input'"):
        norm(run, "1.ffn.inputt")
    with pytest.raises(SiteError, match=r"is no norm's; norms are asked for by 0\.attention\.input, 0\.ffn\.input, "):
        norm(run, "1.ffn.neurons")
    with pytest.raises(ValueError, match=r"positions 0\.\.3, got position=4"):
        norm(run, "1.ffn.input", 4)
    none = traced(tiny_gpt2(block=PostNorm(), n_layers=1), random_ids(1, 4))
    none.transformer.blocks[0].ffn.norm.weight.data += 1.0
    with pytest.raises(WeightsChangedError):
        norm(none, "0.ffn.sum")

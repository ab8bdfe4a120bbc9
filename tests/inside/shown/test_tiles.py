"""Any value as packed numbers: what is unpacked is what the run says."""

import numpy as np
import pytest
import torch

from pellucid.inside.errors import SiteError
from pellucid.inside.reading import all_sites
from pellucid.inside.shown import tiles
from pellucid.inside.shown.tiles import site_tile, values_at
from pellucid.model.config import Config, Init
from pellucid.views.packing import unpacked
from tiny import VOCAB, build, random_ids, tiny_gpt2, traced, with_encoder

ENCODED = with_encoder(Config(VOCAB, 32, n_layers=1, d_model=12, n_heads=3, n_kv_heads=1, init=Init(0.4)), shared=False)
MODELS = {"decoder": tiny_gpt2(torch.float32), "encoder-decoder": build(ENCODED, dtype=torch.float32)}


def run_of(name):
    return traced(MODELS[name], random_ids(1, 5))


@pytest.mark.parametrize("name", MODELS)
def test_the_values_at_one_token(name):
    run = run_of(name)
    for site in all_sites(run.transformer):
        packed = values_at(run, site.name, position=2)
        expected = run[site.name][0]
        if "T" in site.axes:
            expected = expected.select(site.axes.index("T") - 1, 2)
        assert packed.meta["shape"] == list(expected.shape)
        assert packed.meta["of"] == expected.numel()
        assert packed.meta["axes"] == [axis for axis in site.axes if axis not in "BT"]
        assert np.allclose(unpacked(packed.arrays[0]), expected.flatten(), rtol=1e-6, atol=1e-6)
        if site.axes[-1] != "V":
            assert np.array_equal(unpacked(packed.arrays[0]), expected.flatten())


def test_a_part_of_the_values():
    run = run_of("decoder")
    packed = values_at(run, "1.ffn.neurons", position=-1, first=100, most=7)
    assert np.array_equal(unpacked(packed.arrays[0]), run["1.ffn.neurons"][0, 4, 100:107])
    assert (packed.meta["first"], packed.meta["of"]) == (100, 128)


@pytest.mark.parametrize("name", MODELS)
def test_a_tile_is_the_site_for_a_range_of_tokens(name):
    run = run_of(name)
    for site in all_sites(run.transformer):
        packed = site_tile(run, site.name, "float32", first=1, last=3)
        expected = run[site.name][0]
        if "T" in site.axes:
            expected = expected.narrow(site.axes.index("T") - 1, 1, 3)
        assert packed.meta["axes"] == list(site.axes[1:])
        assert np.allclose(unpacked(packed.arrays[0]), expected, rtol=1e-6, atol=1e-6), site.name


@pytest.mark.parametrize("kind", ["uint8", "float16", "float32"])
def test_every_kind_is_within_the_error_it_states(kind):
    run = run_of("decoder")
    array = site_tile(run, "1.stream", kind).arrays[0]
    assert array.kind == kind
    assert np.abs(unpacked(array) - run["1.stream"][0].double().numpy()).max() <= array.error


def test_one_head():
    run = run_of("decoder")
    pattern = site_tile(run, "0.attention.pattern", "float32", head=2)
    assert pattern.meta["axes"] == ["T", "S"]
    assert np.array_equal(unpacked(pattern.arrays[0]), run["0.attention.pattern"][0, 2])
    key = site_tile(run_of("encoder-decoder"), "encoder.0.attention.key", "float32", head=0)
    assert key.meta["axes"] == ["T", "K"]


def test_hidden_keys_stay_minus_infinity():
    array = site_tile(run_of("decoder"), "0.attention.scores", "float16").arrays[0]
    assert np.isneginf(unpacked(array)).sum() == 4 * 10


def test_too_many_numbers_are_refused_before_they_are_made(monkeypatch):
    run = run_of("decoder")
    monkeypatch.setattr(tiles, "MOST_NUMBERS", 300)
    monkeypatch.setattr(type(run), "__getitem__", None)
    with pytest.raises(ValueError, match=r"at most 300 numbers.*got 640: ask for fewer tokens .*one head"):
        site_tile(run, "0.attention.writes")
    with pytest.raises(ValueError, match=r"got 750: ask for fewer tokens \(first, last\)$"):
        site_tile(traced(tiny_gpt2(), random_ids(1, 15)), "logits")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"site": "0.strean"}, "0.stream"),
        ({"site": "0.stream", "kind": "int4"}, "kind must be uint8, float16, float32, got 'int4'"),
        ({"site": "0.stream", "first": 3, "last": 1}, "got first=3 and last=1"),
        ({"site": "0.stream", "last": 5}, r"positions 0\.\.4, got position=5"),
        ({"site": "0.stream", "head": 0}, "has no heads"),
        ({"site": "0.attention.pattern", "head": 4}, r"heads 0\.\.3 \(or -1 for all\), got head=4"),
        ({"site": "0.attention.pattern", "head": -2}, "got head=-2"),
        ({"site": "0.attention.scores", "kind": "uint8"}, "not finite"),
    ],
)
def test_a_tile_that_is_none_is_refused(asked, said):
    with pytest.raises(ValueError, match=said):
        site_tile(run_of("decoder"), **asked)


def test_values_that_are_none_are_refused():
    run = run_of("decoder")
    with pytest.raises(SiteError):
        values_at(run)
    with pytest.raises(ValueError, match=r"first must lie in 0\.\.31 .*got 32"):
        values_at(run, "0.stream", first=32)
    with pytest.raises(ValueError, match="most must lie in"):
        values_at(run, "0.stream", most=0)

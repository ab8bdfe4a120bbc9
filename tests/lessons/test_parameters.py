"""The counts that the lessons print, to the last parameter."""

import pytest
from hypothesis import given, settings

from pellucid.lessons.parameters import GPT2, budget_alone, budget_on, family, gpt2, parts
from pellucid.model.config import Config
from tiny import build, configs, random_ids, tiny_gpt2, traced


def test_gpt2_small_part_by_part():
    found = parts(gpt2())
    assert found["attention"] == 4 * (768**2 + 768) == 2_362_368
    assert found["feed-forward"] == 4_722_432
    assert found["norms"] == 3_072
    assert found["block"] == 7_087_872
    assert found["blocks"] == 85_054_464
    assert found["embeddings"] == 38_597_376 + 786_432
    assert found["rest"] == 1_536
    assert found["total"] == 124_439_808
    block, whole = budget_alone().tables
    assert dict(zip(block.column("part"), block.column("parameters"), strict=True))["= attention"] == 2_362_368
    lines = {row[0]: row[1:3] for row in whole}
    assert lines["token embedding"] == ("50,257 x 768", 38_597_376)
    assert lines["position embedding"] == ("1,024 x 768", 786_432)
    assert lines["final norm"] == ("2 x 768", 1_536)
    assert lines["= total"] == (None, 124_439_808)
    assert sum(whole.column("share")[:-1]) == pytest.approx(1.0)
    assert "117M" in whole.note


def test_the_gpt2_family():
    counts, shares = family().tables
    assert counts.column("size") == ("small", "medium", "large", "XL")
    assert counts.column("parameters") == (124_439_808, 354_823_168, 774_030_080, 1_557_611_200)
    assert [row[1:4] for row in counts] == [(768, 12, 12), (1024, 24, 16), (1280, 36, 20), (1600, 48, 25)]
    assert counts.column("sublayers") == (24, 48, 72, 96)
    assert counts.column("12 d^2 L") == tuple(12 * d**2 * layers for d, layers, _ in GPT2.values())
    assert f"{counts.column('12 d^2 L')[0] / 1e6:.0f}M" == "85M"
    assert f"{counts.column('12 d^2 L')[3] / 1e9:.2f}B" == "1.47B"
    embedded = shares.column("embeddings / all")
    assert (f"{embedded[0]:.1%}", f"{embedded[3]:.1%}") == ("31.6%", "5.3%")
    assert sorted(embedded, reverse=True) == list(embedded)
    assert all(1.99 < ratio < 2.0 for ratio in shares.column("feed-forward / attention"))


@settings(max_examples=12)
@given(configs())
def test_parts_are_all_there_is(config: Config):
    found = parts(config)
    assert found["blocks"] + found["embeddings"] + found["rest"] == found["total"]
    assert found["total"] == sum(weight.numel() for weight in build(config).parameters())
    assert found["block"] == found["attention"] + found["feed-forward"] + found["norms"]


def test_the_budget_of_a_loaded_model():
    model = tiny_gpt2()
    _, whole = budget_on(traced(model, random_ids(1, 3))).tables
    assert whole.rows[-1][2] == sum(weight.numel() for weight in model.parameters())
    assert "117M" not in whole.note

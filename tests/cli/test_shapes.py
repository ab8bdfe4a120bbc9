import re

import pytest

from pellucid.cli.sites import unit
from pellucid.cli.talk import layers_of


@pytest.mark.parametrize(
    ("name", "total"),
    [("gpt2", 124_439_808), ("gpt2-medium", 354_823_168), ("gpt2-large", 774_030_080), ("gpt2-xl", 1_557_611_200)],
)
def test_published_parameter_counts(ask, name, total):
    found = ask("params", name)
    assert found["total"] == total == sum(line["count"] for line in found["lines"])


def test_the_columns_of_parameters_add_up_as_printed(call):
    code, out, err = call("params", "gpt2")
    assert (code, err) == (0, "")
    assert "68% of the total" in out  # 12 * 768^2 * 12 = 84,934,656 of 124,439,808
    for part in out.split("\n\n"):
        numbers = [int(n.replace(",", "")) for n in re.findall(r"(?m)^[a-z=].* ([\d,]+)(?: [ █-▏]*)?$", part)]
        assert sum(numbers[:-1]) == numbers[-1]
        assert len(numbers) > 4


def test_params_of_a_model_are_those_of_its_oracle(ask, oracle):
    model, _, folder = oracle
    assert ask("params", folder)["total"] == sum(weight.numel() for weight in model.parameters())


def test_sites_of_a_model(ask, call, oracle):
    _, _, folder = oracle
    found = {site["site"]: site for site in ask("sites", folder, "--length", 5)["sites"]}
    assert found["1.attention.pattern"]["shape"] == [1, 4, 5, 5]
    assert found["2.attention.key"]["shape"] == [1, 5, 2, 6]
    assert found["0.ffn.neurons"]["bytes"] == 5 * 40 * 4
    code, out, _ = call("sites", folder, "--layers", "all")
    assert code == 0
    assert [name for name in found if f"\n{name} " not in out] == []


def test_layers_not_shown_are_folded(call):
    _, out, _ = call("sites", "gpt2", "--layers", "2")
    names = re.findall(r"(?m)^\d\S*\.[a-z*]\S*", out)
    assert names[0] == "0-1.*"
    assert names[1] == "2.stream"
    assert names[-2:] == ["3-11.*", "12.stream"]


@pytest.mark.parametrize("name", ["gpt2", "gpt2-xl"])
def test_tables_of_shapes_fit_80_columns(call, name):
    for words in (["params", name], ["sites", name, "--length", "1024", "--layers", "all"]):
        _, out, _ = call(*words)
        assert max(map(len, out.splitlines())) <= 80
        assert "…" not in out
        assert "\x1b" not in out


def test_the_names_of_both_sides_can_be_copied(ask, call):
    """Formulas name the sites they read: in full, and in the table without the side that the site's name says."""
    found = {site["site"]: site["formula"] for site in ask("sites", "transformer-base")["sites"]}
    assert found["decoder.1.attention.sum"] == "decoder.1.stream + decoder.1.attention.update"
    assert found["encoder.0.stream.mid"] == "LayerNorm(encoder.0.attention.sum)"
    named = [word for formula in found.values() for word in re.findall(r"[a-z]*\.?\d+\.[a-z][\w.]*", formula)]
    assert [word for word in named if word not in found] == []
    assert len(named) > 12 * 8
    code, out, _ = call("sites", "transformer-base", "--layers", "all")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert [name for name in found if f"\n{name} " not in out] == []
    assert len(re.findall(r" {2}LayerNorm\(\n? *0\.attention\.sum\)", re.sub(r"(?m) +T D .*$", "", out))) == 2
    assert "Names in a formula are of the same side" in out


def test_counts_have_separators_throughout(call):
    _, out, _ = call("params", "pythia-14m")
    assert re.findall(r"(?<![\d,.])\d{4,}", out) == []
    assert "198,272" in out  # 12 * 128^2 + 13 * 128, one block


def test_an_unknown_shape_is_answered_with_the_nearest_of_presets_and_models(call):
    code, out, err = call("params", "gpt3-175")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "the nearest are gpt3-175b" in err
    assert "minilm" in call("sites", "minilmm")[2]


@pytest.mark.parametrize(
    ("text", "layers"),
    [("0,1,4", [0, 1, 4]), ("1-3", [1, 2, 3]), ("all", [0, 1, 2, 3, 4]), ("3, 0-1,1", [0, 1, 3]), ("", [])],
)
def test_lists_of_layers(text, layers):
    assert layers_of(text, 5) == layers


@pytest.mark.parametrize(
    "text", ["5", "0-5", "-1", "x", "1-", "1-2-3", "0-99999999999", "99999999999-0", "3-1", ",", "1,", " "]
)
def test_lists_of_layers_that_are_not(text):
    with pytest.raises(ValueError, match="layers"):
        layers_of(text, 5)


@pytest.mark.parametrize(
    ("size", "said"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_877_173_248, "1.9 GB"), (10**13, "10000.0 GB")]
)
def test_units(size, said):
    assert unit(size).strip() == said

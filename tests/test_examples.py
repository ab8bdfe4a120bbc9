"""The examples' claims that can be checked without training for minutes."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from pellucid.model.budget import budget
from pellucid.model.config import Config, PostNorm, PreNorm
from pellucid.model.plain import from_plain
from pellucid.training.settings import read_run, run_from

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def example(monkeypatch):
    """An example as a module; those that stand beside it can be imported by it."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def load(name):
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


def shapes(module, comparing):
    """The config of each variant."""
    found = {}
    for name, changes in module.VARIANTS.items():
        values = comparing.merged(comparing.QUIET, module.COMMON, changes)
        run_from({**values, "steps": 100}, name)
        found[name] = from_plain(Config, {"vocab_size": 100, "context_length": 64, **values["model"]}, name)
    return found


def test_gated_and_plain_have_exactly_as_many_parameters(example):
    found = shapes(example("gated"), example("comparing"))
    assert {name: config.gated for name, config in found.items()} == {"GELU": False, "SwiGLU": True}
    assert budget(found["GELU"]).total == budget(found["SwiGLU"]).total


def test_the_four_ways_of_norm_and_warm_up_differ_in_these_alone(example):
    module, comparing = example("norms"), example("comparing")
    blocks = {name: type(config.block) for name, config in shapes(module, comparing).items()}
    assert list(blocks.values()) == [PreNorm, PreNorm, PostNorm, PostNorm]
    warmups = [changes["schedule"]["warmup"] for changes in module.VARIANTS.values()]
    assert warmups == [50, 0, 50, 0]


def test_the_text_of_the_induction_example_repeats_itself_within_each_line(example):
    module = example("induction")
    text = module.text(3)
    assert len(text) == module.LINE * module.LINES
    for start in range(0, 50 * module.LINE, module.LINE):
        line = text[start : start + module.LINE]
        period = line.find(line[0], 1)
        assert module.SHORTEST <= period <= module.LONGEST
        assert len(set(line[:period])) == period
        assert line[period:] == line[:-period]


def test_the_summary_says_when_a_score_passes_a_half(example):
    module = example("induction")
    rising = [(10 * n, n / 10) for n in range(11)]
    falling = [(10 * n, 3.0 if n < 5 else 1.0) for n in range(11)]
    found = {
        "induction": {"loss": falling, "1.0": rising, "chance": [(10, 0.03)]},
        "previous": {"0.0": [(10, 0.2)], "chance": [(10, 0.07)]},
    }
    assert module.summary(found) == [
        "induction  1.0: 1.000 at the end, above 0.5 from step 60; 0.030 by chance",
        "previous   0.0: 0.200 at the end, never above 0.5; 0.070 by chance",
        "loss on the second copy: 1.000 at the end; falls by 2.00 in steps 0-50",
    ]


def test_a_comparison_reads_runs_and_gives_mean_and_spread(example, tmp_path):
    comparing = example("comparing")
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": n, "validation": v}) + "\n" for n, v in ((0, None), (1, 3.0), (3, 2.0)))
    )
    assert comparing.curve(tmp_path) == [(2, 3.0), (4, 2.0)]
    lines = comparing.table({"a": [[(4, 1.0)], [(4, 2.0)], [(4, 3.0)]]}).splitlines()
    assert lines[-1] == "| a | 2.000 | 1.000 | 1.000, 2.000, 3.000 |"


def test_the_fine_tuning_example_adapts_every_matrix_of_a_checkpoint():
    settings = read_run(EXAMPLES / "finetune.toml")
    assert settings.lora is not None
    assert settings.lora.names == ("all",)
    assert settings.model == {"start": "smollm2"}

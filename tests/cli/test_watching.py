"""`pellucid train --watch`: names, what is written and what is shown."""

import json
import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from pellucid.cli.watching import Lines
from pellucid.front.training import train, watches_of
from pellucid.training.run import Run
from pellucid.training.settings import read_run
from pellucid.training.watch_names import WATCH_NAMES, WATCHES, watch_names

SMALL = [
    "steps=6", "schedule.warmup=2", "model.n_layers=2", "model.d_model=8", "model.n_heads=2", "data.length=8",
    "data.rows=2", "evaluate.every=6", "sample.every=0", "log.curve=false", "log.watch_every=4",
]  # fmt: skip


@pytest.fixture
def options(tmp_path):
    (tmp_path / "a.txt").write_text("the quick brown fox jumps over the lazy dog. " * 12, encoding="utf-8")
    every = [*SMALL, f"folder={tmp_path / 'run'}", f"data.text={tmp_path / 'a.txt'}"]
    return [part for change in every for part in ("--set", change)]


def test_every_watch_is_taken_written_down_and_shown(call, options, tmp_path):
    code, out, err = call("train", *options, "--watch", ",".join(WATCHES))
    assert (code, err) == (0, "")
    shown = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert shown == [*WATCHES, *WATCHES]
    lines = [json.loads(line) for line in (tmp_path / "run" / "watches.jsonl").read_text().splitlines()]
    assert [(line["step"], line["watch"]) for line in lines] == [(step, name) for step in (3, 5) for name in WATCHES]
    assert all(
        isinstance(value, float) for line in lines for key, value in line.items() if key not in ("step", "watch")
    )
    assert {"loss", "0.0", "1.1"} <= lines[0].keys()
    assert all(0 < value < 1 for line in lines if line["watch"] == "updates" for value in list(line.values())[2:])


def test_a_run_that_goes_on_watches_the_same(call, ask, options, tmp_path):
    call("train", *options, "--watch", "updates,stream", "--set", "steps=6")
    whole = (tmp_path / "run" / "watches.jsonl").read_text()
    ask("train", *options, "--watch", "updates,stream", "--resume")
    assert (tmp_path / "run" / "watches.jsonl").read_text() == whole


def test_an_unknown_name_is_refused_before_anything_is_made(call, options, tmp_path):
    code, out, err = call("train", *options, "--watch", "gradients,inducton")
    assert (code, out) == (2, "")
    assert "there is no watch 'inducton': did you mean induction?" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("said", [" ", ",", " , "])
def test_names_that_name_nothing_are_refused(call, options, tmp_path, said):
    code, out, err = call("train", *options, "--watch", said)
    assert (code, out) == (2, "")
    assert "no watch is named" in err
    assert not (tmp_path / "run").exists()


def test_updates_need_all_weights_in_one_process(options):
    run: Any = Run(read_run(None, options[1::2]))
    run.world = SimpleNamespace(size=2)
    with pytest.raises(ValueError, match="whole weights before a step"):
        watches_of(["updates"], run)


def test_help_names_every_watch():
    assert ", ".join(WATCHES) == WATCH_NAMES


def test_names_are_taken_once_and_in_order():
    assert watch_names(" rank, stream,rank,") == ["rank", "stream"]
    with pytest.raises(ValueError, match="there are induction, previous"):
        watch_names("xyzzy")


def test_a_line_shows_the_greatest_measure_over_the_steps_and_all_now():
    lines = Lines()
    for loss, heads in ((4.0, {"0.0": 0.0, "1.0": 0.5, "chance": 2.0}), (2.0, {"0.0": 0.25, "1.0": 1.0})):
        (line,) = lines.of(SimpleNamespace(watched={"induction": {"loss": loss, **heads}}))
    assert line == "  induction   loss 2 █▅   1.0 1 ▅█   by place ▃█"
    assert lines.of(SimpleNamespace(watched=None)) == []
    assert lines.of(SimpleNamespace(watched={"updates": {}})) == []


def test_training_in_python_gives_the_model_and_takes_the_same_watches(call, options, tmp_path):
    call("train", *options, "--watch", "stream")
    written = (tmp_path / "run" / "watches.jsonl").read_text()
    shutil.rmtree(tmp_path / "run")
    seen = []
    model = train(watch=["stream"], changes=options[1::2], report=seen.append)
    assert [report.record.step for report in seen] == list(range(6))
    assert (tmp_path / "run" / "watches.jsonl").read_text() == written
    assert model.generate("the", max_new_tokens=3).finish_reason == "length"
    with pytest.raises(ValueError, match="did you mean stream"):
        train(watch=["steam"])
    with pytest.raises(ValueError, match="changes are of a file"):
        train(read_run(), changes=["steps=3"])

"""Settings of a run: every key is known, and every wrong input is told in one line before the first step."""

import json
import shutil
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from pellucid.text import Tokenizer
from pellucid.training.documents import corpus_of
from pellucid.training.lora import Lora
from pellucid.training.run import Run
from pellucid.training.schedules import Constant, Cosine, InverseRoot, Linear, WarmupStableDecay
from pellucid.training.settings import RunSettings, read_run
from pellucid.training.tokenizing import tokenize
from pellucid.training.vocabulary import train_characters, write_files
from pellucid.weights.errors import CheckpointError

TOML = """
folder = "somewhere"
steps = 7
[model]
n_layers = 3
positions = { kind = "Rotary", base = 500.0 }
[data]
text = ["a.txt", "b"]
length = 16
[schedule]
name = "linear"
warmup = 2
"""


def test_a_file_and_changes_of_it(tmp_path):
    (tmp_path / "run.toml").write_text(TOML)
    found = read_run(
        tmp_path / "run.toml", ["data.length=32", "optimizer.name=muon", "data.text=c.txt", "sample.every=0"]
    )
    assert (found.folder, found.steps, found.data.length, found.optimizer.name) == ("somewhere", 7, 32, "muon")
    assert found.data.paths == ("c.txt",)
    assert found.model["positions"] == {"kind": "Rotary", "base": 500.0}
    assert read_run(tmp_path / "run.toml").data.paths == ("a.txt", "b")
    assert read_run() == RunSettings()


def test_the_defaults_are_the_small_setting_of_nanogpt():
    found = RunSettings()
    assert (found.steps, found.data.rows, found.data.length, found.optimizer.beta2) == (2000, 12, 64, 0.99)


def test_schedules_by_name():
    def made(*changes):
        return read_run(None, ["steps=50", "schedule.warmup=5", *changes]).schedule.schedule(50, 64)

    assert made("schedule.final=1e-4", "schedule.peak=1e-2") == Cosine(1e-2, 50, 5, 1e-4)
    assert made("schedule.name=linear", "schedule.final=0.0", "schedule.peak=1e-3") == Linear(1e-3, 50, 5, 0.0)
    stable = made("schedule.name=stable", "schedule.decay=9", "schedule.final=0.0", "schedule.peak=1e-3")
    assert stable == WarmupStableDecay(1e-3, 50, 5, 9, 0.0)
    assert made("schedule.name=inverse_root", "schedule.scale=2.0") == InverseRoot(64, 5, 2.0)
    assert made("schedule.name=constant", "schedule.peak=1e-3") == Constant(1e-3, 5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("data.lenght=3", "the run.data has no field 'lenght'; Data has length"),
        ("stpes=3", "no field 'stpes'; RunSettings has steps"),
        ("data.kind=Data", "has no key 'data.kind'"),
        ("kind=RunSettings", "has no key 'kind'"),
        ("loop.first_step=3", "loop.first_step is the run's own"),
        ("data.length=many", "the run.data.length must be int, got 'many'"),
        ("data=3", "the run.data must be Data, got 3"),
        ("steps=0", "steps must be a whole number of at least 1, got 0"),
        ("steps=true", "the run.steps must be int, got True"),
        ("data.order=shuffled", "data.order must be 'windows' or .* or 'packed', got 'shuffled'"),
        ("data.validation=1.0", r"data.validation must lie in \[0, 1\), got 1.0"),
        ("data.validation_tokens=a", "goes with data.tokens"),
        ("schedule.name=sine", "schedule.name must be 'cosine'"),
        ("schedule.warmup=3000", "warmup must end within the 2000 steps"),
        ("optimizer.name=sgd", "optimizer.name must be"),
        ("loop.precision=fp8", "loop.precision must be"),
        ("sample.prompt=", "sample.prompt must not be empty"),
        ("save.keep=0", "save.keep must be a whole number"),
        ("steps", "a change is written as key=value"),
        ("=3", "a change is written as key=value"),
        ("steps.more=3", "must be int"),
    ],
)
def test_a_wrong_key_or_value_is_one_line(change, said):
    with pytest.raises(ValueError, match=said) as caught:
        read_run(None, [change])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"), [("steps = ", "not a TOML file"), ("a = 1\na = 2", "not a TOML file"), (None, "no such file")]
)
def test_a_file_that_is_no_toml_is_one_line(tmp_path, content, said):
    if content is not None:
        (tmp_path / "run.toml").write_text(content)
    with pytest.raises(ValueError, match=said) as caught:
        read_run(tmp_path / "run.toml")
    assert "\n" not in str(caught.value)


@pytest.fixture
def run(tmp_path):
    """A run on a small text, with changes; its text is 200 characters."""
    (tmp_path / "a.txt").write_text("the cat sat on the mat. " * 8 + "hm hm hm", encoding="utf-8")
    small = [
        "steps=2", "schedule.warmup=0", "model.n_layers=1", "model.d_model=8", "model.n_heads=2", "data.length=8",
        "sample.prompt=the", f"data.text={tmp_path / 'a.txt'}", "log.curve=false", "sample.tokens=9",
    ]  # fmt: skip

    def begin(name, *changes, resume=False):
        return Run(read_run(None, [*small, f"folder={tmp_path / name}", *changes]), resume)

    return begin


def refused(begin, said, *changes, **options):
    with pytest.raises(ValueError, match=said) as caught:
        begin("a", *changes, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("data.text=absent.txt", "absent.txt: no such file"),
        ("data.tokens=absent.tokens", "two sources"),
        ("data.length=190", r"tokens are too few: at least 191 are needed"),
        ("data.validation=0.01", r"2 tokens are too few|3 tokens are too few"),
        ("data.tokenizer=absent-model", "absent-model"),
        ("model.n_heads=3", "d_model must be a multiple of n_heads"),
        ("model.n_layer=3", "model has no field 'n_layer'; Config has n_layers"),
        ("model.vocab_size=3", r"the data's vocabulary has \d+ ids, the model only 3"),
        ("model.context_length=4", "data.length 8 is more than the context of 4"),
        ("model.preset=gpt3", "gpt3"),
        ("model.start=smolm2", "brings its own shape|smollm2"),
        ("device=cuda:9", "cannot be used here"),
        ("device=nowhere", "cannot be used here"),
        ("sample.prompt=Ω", "no token"),
        ("objective=magic", "objective"),
    ],
)
def test_what_does_not_fit_is_one_line_before_the_first_step(run, change, said):
    refused(run, said, change)


def test_a_folder_with_a_run_is_not_begun_again(run):
    list(run("a"))
    refused(run, "holds a run: go on with it")
    refused(run, "began with data.rows = 12 and cannot go on with 3", "data.rows=3", resume=True)
    assert list(run("a", "evaluate.every=1", resume=True)) == []


def test_a_folder_without_a_run_is_not_gone_on_with(run, tmp_path):
    refused(run, "holds no run to go on with", resume=True)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.txt").write_text("mine")
    refused(run, "holds other things than a run: 'thesis.txt'")
    (tmp_path / "a" / "thesis.txt").unlink()
    (tmp_path / "a").rmdir()
    (tmp_path / "a").write_text("a file")
    refused(run, "found a file")


def test_a_checkpoint_of_another_shape_is_one_line(run, tmp_path):
    list(run("a"))
    list(run("b", "model.d_model=16"))
    latest = tmp_path / "a" / "checkpoints" / "00000002"
    shutil.rmtree(latest)
    shutil.copytree(tmp_path / "b" / "checkpoints" / "00000002", latest)
    refused(run, r"of another shape: .* is \(.*16.*\) there and \(.*8.*\) in this run", resume=True)


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_one_line(run, tmp_path, name):
    list(run("a"))
    path = tmp_path / "a" / "checkpoints" / "00000002" / name
    path.write_bytes(path.read_bytes()[:-20])
    refused(run, name, resume=True)
    path.unlink()
    refused(run, name, resume=True)


def test_tokens_and_tokenizer_must_be_of_one_vocabulary(run, tmp_path):
    for name, text in (("one", "abc" * 50), ("two", "abd" * 50)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(text)
        words = write_files(tmp_path / name, train_characters([text]))
        tokenize(tmp_path / name / "data.tokens", words, corpus_of([tmp_path / name / "a.txt"]))
    data = ["data.text=[]", f"data.tokens={tmp_path / 'one' / 'data.tokens'}", "sample.prompt=a"]
    assert len(list(run("fine", *data))) == 2
    other = f"data.validation_tokens={tmp_path / 'two' / 'data.tokens'}"
    refused(run, "tokens of another vocabulary", *data, other)
    shutil.copy(tmp_path / "two" / "tokenizer.json", tmp_path / "one" / "tokenizer.json")
    with pytest.raises(ValueError, match="of another vocabulary than the tokenizer's"):
        run("other", *data)


def test_no_space_left_is_told_and_leaves_the_last_checkpoint(run, tmp_path, monkeypatch):
    from pellucid.training import world

    training = run("a", "save.every=1", "evaluate.every=0")
    keep = world.save_safetensors

    def full(path, tensors):
        if path.parent.name.startswith(".00000002"):
            raise OSError(28, "No space left on device", str(path))
        keep(path, tensors)

    monkeypatch.setattr(world, "save_safetensors", full)
    with pytest.raises(CheckpointError, match=r"could not be written \(No space left on device\).*--resume"):
        list(training)
    assert [path.name for path in (tmp_path / "a" / "checkpoints").iterdir()] == ["00000001"]
    monkeypatch.setattr(world, "save_safetensors", keep)
    assert [report.record.step for report in run("a", "save.every=1", "evaluate.every=0", resume=True)] == [1]


def test_tensorboard_is_asked_for_before_the_first_step(run, monkeypatch):
    from pellucid.training import run_folder

    monkeypatch.setattr(run_folder, "has_board", lambda: False)
    refused(run, "pip install tensorboard", "log.tensorboard=true")


def test_a_run_starts_from_any_checkpoint(run, tmp_path):
    first = run("first")
    list(first)
    path = first.export()
    second = run("second", "model={}", f"model.start={path}", "data.rows=2")
    for name, weight in second.transformer.state_dict().items():
        assert torch.equal(weight, first.transformer.state_dict()[name])
    assert isinstance(second.tokenizer, Tokenizer)
    assert len(list(second)) == 2
    refused(run, "brings its own shape: n_layers", "model={}", f"model.start={path}", "model.n_layers=2")
    assert json.loads((tmp_path / "second" / "run.json").read_text())["model"] == {"start": str(path)}


def test_the_page_of_training_has_every_key_with_its_default():
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    written = tomllib.loads(page.partition("```toml\n")[2].partition("```")[0])
    defaults = asdict(RunSettings())
    assert defaults.pop("lora") is None
    defaults["data"]["text"] = list(defaults["data"]["text"])
    assert written == defaults
    lora = tomllib.loads(page.partition("And `")[2].partition("`")[0])["lora"]
    assert {**asdict(Lora()), "targets": list(Lora().names)} == lora

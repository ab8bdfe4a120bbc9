"""Runs: what stands in the folder, and going on after any stop as if there had been none."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid.model.config import Config
from pellucid.model.transformer import Transformer
from pellucid.training import checkpoints, recording
from pellucid.training.checkpoints import checkpoints as saved
from pellucid.training.journal import Journal, read_journal
from pellucid.training.run import Run
from pellucid.training.settings import read_run
from pellucid.training.start import start_of
from pellucid.weights.safetensors_file import open_safetensors
from pellucid.weights.saving import save_checkpoint

SMALL = [
    "steps=12", "model.n_layers=1", "model.d_model=8", "model.n_heads=2", "data.length=8", "data.rows=3",
    "evaluate.every=4", "sample.every=6", "sample.tokens=20", "save.every=3", "schedule.warmup=2", "log.curve=false",
    'model.dropout={kind="Dropout", embedding=0.1, attention=0.1, update=0.1}',
]  # fmt: skip

TEXT = "".join(f"{n} times {n} is {n * n}.\n" for n in range(60))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def settings(tmp_path, text):
    def make(name, *changes):
        return read_run(None, [*SMALL, f"data.text={text}", f"folder={tmp_path / name}", *changes])

    return make


def tensors(folder, step):
    path = folder / "checkpoints" / f"{step:08}"
    return {name: tensor for file in ("weights", "optimizer") for name, tensor in read(path / f"{file}.safetensors")}


def read(path):
    return [(f"{path.stem} {name}", tensor.clone()) for name, tensor in open_safetensors(path).items()]


def lines(folder, name="metrics.jsonl"):
    """A journal without what depends on the clock."""
    return [{key: value for key, value in line.items() if key != "seconds"} for line in read_journal(folder / name)]


def same_run(one, other, step=12):
    left, right = tensors(one, step), tensors(other, step)
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []
    assert lines(one) == lines(other)
    assert lines(one, "samples.jsonl") == lines(other, "samples.jsonl")


@pytest.fixture
def whole(settings):
    """A run that nothing disturbed."""
    run = Run(settings("whole"))
    reports = list(run)
    return run, reports


# --- The folder ---


def test_a_run_writes_down_all_that_it_reports(whole):
    run, reports = whole
    assert [report.record.step for report in reports] == list(range(12))
    assert [report.record.step for report in reports if report.validation is not None] == [3, 7, 11]
    assert [report.record.step for report in reports if report.text is not None] == [5, 11]
    written = lines(run.folder)
    assert [line["loss"] for line in written] == [report.record.loss for report in reports]
    assert [line.get("validation") for line in written] == [report.validation for report in reports]
    assert [line["text"] for line in lines(run.folder, "samples.jsonl")] == [r.text for r in reports if r.text]
    assert read_run(run.folder) == run.settings
    names = {path.name for path in run.folder.iterdir()}
    assert names == {
        "run.json", "data.tokens", "tokenizer.json", "tokenizer_config.json", "metrics.jsonl", "samples.jsonl",
        "watches.jsonl", "checkpoints", ".lock",
    }  # fmt: skip


def test_validation_is_the_mean_over_all_held_back_targets(whole):
    run, reports = whole
    file = run.reader.span.file
    held = torch.from_numpy(file.checked(file.tokens[int(len(file) * 0.9) :]))
    windows = (len(held) - 1) // 8
    run.transformer.eval()
    losses = []
    for n in range(windows):
        piece = held[8 * n : 8 * n + 9]
        losses.append(torch.nn.functional.cross_entropy(run.transformer(piece[None, :-1])[0], piece[1:]))
    assert reports[-1].validation == pytest.approx(torch.stack(losses).mean().item(), abs=1e-5)


def test_the_last_checkpoints_and_the_best_are_kept(settings, monkeypatch):
    losses = iter([3.0, 1.0, 2.0, 1.5, 4.0, 5.0])
    monkeypatch.setattr(Run, "validate", lambda self: next(losses))
    run = Run(settings("a", "evaluate.every=2", "save.every=2", "save.keep=2"))
    list(run)
    assert [path.name for path in saved(run.checkpoints)] == ["00000004", "00000010", "00000012"]
    assert checkpoints.best(run.checkpoints).name == "00000004"


def test_a_checkpoint_holds_text_and_plain_tensors_only(whole):
    run, _ = whole
    path = saved(run.checkpoints)[-1]
    assert {file.name for file in path.iterdir()} == {"weights.safetensors", "optimizer.safetensors", "state.json"}
    assert json.loads((path / "state.json").read_text())["steps"] == 12
    own = dict(open_safetensors(path / "weights.safetensors"))
    assert own.keys() == run.transformer.state_dict().keys()
    assert all(torch.equal(own[name], tensor) for name, tensor in run.transformer.state_dict().items())


def test_the_best_weights_become_a_model_that_load_opens(settings):
    run = Run(settings("a"))
    list(run)
    path = run.export()
    model = pellucid.load(path)
    best = dict(open_safetensors(checkpoints.best(run.checkpoints) / "weights.safetensors"))
    assert all(torch.equal(best[name], tensor) for name, tensor in model.transformer.state_dict().items())
    assert model.generate("3 times", max_new_tokens=5, stop_ids=()).ids
    assert model.eos_ids == (0,)


def test_watches_see_the_gradients_of_their_step(settings):
    def gradients(transformer):
        return {"sum": float(sum(weight.grad.abs().sum() for weight in transformer.parameters()))}

    run = Run(settings("a", "log.watch_every=5"), watches={"gradients": gradients})
    reports = list(run)
    assert [report.record.step for report in reports if report.watched] == [4, 9, 11]
    written = lines(run.folder, "watches.jsonl")
    assert written == [
        {"step": report.record.step, "watch": "gradients", **report.watched["gradients"]}
        for report in reports
        if report.watched
    ]
    assert all(line["sum"] > 0 for line in written)


@pytest.mark.slow
def test_the_curve_is_a_picture(settings):
    pytest.importorskip("matplotlib")
    run = Run(settings("a", "log.curve=true"))
    list(run)
    data = (run.folder / "curve.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 5000


def test_tensorboards_files_hold_every_measure(settings, monkeypatch):
    """Against a writer that only remembers: the package is not among those that tests need."""
    told, begun = [], []

    class Writer:
        def __init__(self, folder, since):
            begun.append((folder.name, since))

        def add_scalar(self, name, value, step):
            told.append((step, name, value))

        def close(self):
            begun.append("closed")

    monkeypatch.setattr(recording, "_board", Writer)
    monkeypatch.setattr("pellucid.training.run_folder.has_board", lambda: True)
    watch = {"depth": lambda transformer: {"first": 2.0}}
    reports = list(Run(settings("a", "log.tensorboard=true", "log.watch_every=12"), watches=watch))
    assert begun == [("tensorboard", 0), "closed"]
    assert [value for _, name, value in told if name == "loss"] == [report.record.loss for report in reports]
    assert [step for step, name, _ in told if name == "validation"] == [3, 7, 11]
    assert (11, "depth/first", 2.0) in told


def test_without_matplotlib_there_is_no_curve(settings, monkeypatch):
    monkeypatch.setattr(recording, "can_draw", lambda: False)
    run = Run(settings("a", "log.curve=true", "steps=2"))
    list(run)
    assert not (run.folder / "curve.png").exists()


@pytest.mark.parametrize(
    "changes",
    [
        ["data.order=documents", "model.masks=[{kind='Causal'}]"],
        ["data.order=sequential", "optimizer.name=muon", "loop.rows=2", "loop.recompute=true"],
        ["data.tokenizer=bpe", "data.vocab_size=270", "schedule.name=inverse_root"],
        ["model.preset=gpt2"],
    ],
)
def test_other_data_optimisers_and_shapes_train_too(settings, changes):
    run = Run(settings("a", "steps=3", *changes))
    assert all(report.record.loss > 0 for report in run)


@pytest.mark.slow
def test_no_text_at_all_is_the_standard_library(tmp_path, monkeypatch):
    from pellucid.training import assembly, documents

    whole_library = documents.standard_library()
    few = documents.Corpus(lambda: (d for n, d in enumerate(whole_library.read()) if n < 3), 0)
    monkeypatch.setattr(assembly, "standard_library", lambda: few)
    run = Run(read_run(None, [*SMALL, f"folder={tmp_path / 'a'}", "steps=2"]))
    assert len(list(run)) == 2


# --- Going on ---


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 4, 5, 11])
def test_trn_3_resume_after_any_step_is_as_if_never_stopped(settings, whole, step):
    undisturbed, _ = whole
    run = Run(settings("stopped", "save.every=1"))
    for report in run:
        if report.record.step + 1 == step:
            run.stop()
    assert [path.name for path in saved(run.checkpoints)][-1] == f"{step:08}"
    torch.manual_seed(99)
    again = Run(settings("stopped", "save.every=1"), resume=True)
    assert [report.record.step for report in again] == list(range(step, 12))
    same_run(undisturbed.folder, again.folder)
    assert again.best == undisturbed.best


def test_trn_3_resume_from_an_older_checkpoint_takes_out_later_lines(settings, whole):
    undisturbed, _ = whole
    run = Run(settings("stopped"))
    for report in run:
        if report.record.step == 7:  # the last checkpoint is of step 6, or 4, 8: when validation was best
            break
    del run
    latest = int(saved(undisturbed.folder.with_name("stopped") / "checkpoints")[-1].name)
    again = Run(settings("stopped"), resume=True)
    assert [report.record.step for report in again] == list(range(latest, 12))
    same_run(undisturbed.folder, again.folder)


def test_a_finished_run_has_nothing_left_to_do(whole, settings):
    run, _ = whole
    before = lines(run.folder)
    assert list(Run(settings("whole"), resume=True)) == []
    assert lines(run.folder) == before


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Runs that were killed, each beside one that was not; see dying.py."""
    root = tmp_path_factory.mktemp("killed")
    (root / "a.txt").write_text(TEXT, encoding="utf-8")
    program = [sys.executable, str(Path(__file__).with_name("dying.py")), str(root)]
    changes = [*SMALL, f"data.text={root / 'a.txt'}"]
    done = subprocess.run([*program, *changes], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    return root, json.loads(done.stdout)


@pytest.mark.slow
def test_trn_3_resume_after_kill_9_at_any_moment(killed):
    root, said = killed
    assert said["moments"] == [9, 9, 9, 9, 9, 9, 0]  # six times ended by that signal, then by itself
    same_run(root / "whole", root / "moments", 14)
    one, other = ((root / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "moments"))
    assert one == other


@pytest.mark.parametrize("stage", ["run", "tokens", "weights", "optimizer", "state", "rename", "prune"])
def test_trn_3_resume_when_a_file_was_being_written(killed, stage):
    root, said = killed
    assert said[stage] == [9, 0]
    same_run(root / "whole", root / stage, 14)
    left = [path.name for path in (root / stage).rglob(".*") if path.parent.name == "checkpoints"]
    assert left == []


def test_a_line_that_was_cut_off_is_no_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step": 0, "loss": 1.0}\n{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    journal = Journal(path, since=2)
    journal.write({"step": 2, "loss": float("nan")})
    journal.close()
    assert list(read_journal(path)) == [{"step": n, "loss": v} for n, v in ((0, 1.0), (1, 2.0), (2, None))]


def test_a_model_that_is_edited_beside_its_weights_is_not_trained(tmp_path):
    model = Transformer(Config(20, 8, 1, 8, 2))
    save_checkpoint(tmp_path / "m", model, beside={"edits.json": b"{}"})
    with pytest.raises(ValueError, match=r"is edited by its edits.json, and a model is trained as its weights are"):
        start_of(read_run(None, [f"model.start={tmp_path / 'm'}"]))


def test_a_run_goes_on_in_the_folder_that_is_named_wherever_it_was_copied(settings, tmp_path):
    list(Run(settings("a", "steps=6")))
    shutil.copytree(tmp_path / "a", tmp_path / "b" / "moved")
    moved = read_run(tmp_path / "b" / "moved")
    assert Path(moved.folder) == tmp_path / "b" / "moved"
    assert Run(moved, resume=True).folder == tmp_path / "b" / "moved"


def test_a_start_that_failed_does_not_keep_its_folder(settings, tmp_path):
    (tmp_path / "short.txt").write_text("ab")
    with pytest.raises(ValueError, match="too few"):
        Run(settings("a", f"data.text={tmp_path / 'short.txt'}"))
    assert (tmp_path / "a" / "run.json").exists()
    run = Run(settings("a"))
    list(run)
    assert run.tokenizer is not None
    assert set(TEXT) <= set(run.tokenizer.decode(list(range(run.tokenizer.vocab_size))))
    with pytest.raises(ValueError, match="holds a run"):
        Run(settings("a"))


def test_a_prompt_that_the_vocabulary_lacks_is_told_with_its_key(settings):
    with pytest.raises(ValueError, match=r"sample.prompt '#': .*; give another, or set sample.every=0"):
        Run(settings("a", "sample.prompt='#'"))
    Run(settings("b", "sample.prompt='#'", "sample.every=0"))

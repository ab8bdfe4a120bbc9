"""Runs that train adapters alone, of a checkpoint that stays as it is."""

import pytest
import torch

import pellucid
from pellucid.training.adapters import load_adapter
from pellucid.training.checkpoints import checkpoints as saved
from pellucid.training.run import Run
from pellucid.training.settings import read_run
from pellucid.weights.loading import load_checkpoint
from pellucid.weights.safetensors_file import open_safetensors

SMALL = [
    "steps=8", "data.length=8", "data.rows=3", "evaluate.every=4", "sample.every=0", "schedule.warmup=2",
    "log.curve=false", "schedule.peak=0.02",
]  # fmt: skip
TEXT = "".join(f"{n} times {n} is {n * n}.\n" for n in range(60))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model that a run trained from nothing, with its tokenizer, and the text."""
    root = tmp_path_factory.mktemp("base")
    (root / "a.txt").write_text(TEXT, encoding="utf-8")
    shape = ["model.n_layers=2", "model.d_model=8", "model.n_heads=2", f"data.text={root / 'a.txt'}"]
    run = Run(read_run(None, [*SMALL, *shape, f"folder={root / 'run'}"]))
    list(run)
    return run.export()


@pytest.fixture
def make(tmp_path, base):
    def run(name, *changes, resume=False):
        changes = ("lora.targets=['all']", *changes)
        start = [f'model.start="{base}"', f"data.text={base.parents[1] / 'a.txt'}", f"folder={tmp_path / name}"]
        return Run(read_run(None, [*SMALL, *start, "lora.r=2", "lora.alpha=2", *changes]), resume)

    return run


def weights(folder):
    return {name: tensor.clone() for name, tensor in open_safetensors(folder).items()}


def test_a_run_writes_the_adapter_and_the_merged_model(make, base):
    run = make("a")
    before = run.validate()
    list(run)
    assert run.best < before
    path = run.export()
    assert path == run.folder / "model"
    beside = load_checkpoint(base).transformer
    load_adapter(beside, run.folder / "adapter").merge()
    merged = pellucid.load(path)
    found = merged.transformer.state_dict()
    assert found.keys() == beside.state_dict().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in beside.state_dict().items())
    assert merged.generate("3 times", max_new_tokens=3, stop_ids=()).ids
    changed = [name for name, tensor in weights(base).items() if not torch.equal(tensor, weights(path)[name])]
    assert len(changed) == 2 * (2 + 2)  # of both layers the four matrices, and nothing else


def test_the_adapter_alone_if_that_is_asked_for(make):
    run = make("a", "lora.merge=false", "steps=2", "schedule.warmup=1")
    list(run)
    assert run.export() == run.folder / "adapter"
    assert not (run.folder / "model").exists()


def test_a_run_that_stopped_goes_on_as_if_it_had_not(make):
    changes = ("lora.dropout=0.3", "save.every=1")
    whole = make("whole", *changes)
    list(whole)
    stopped = make("stopped", *changes)
    for report in stopped:
        if report.record.step == 2:
            stopped.stop()
    again = make("stopped", *changes, resume=True)
    assert [report.record.step for report in again] == list(range(3, 8))
    last = [saved(run.checkpoints)[-1] for run in (whole, again)]
    for file in ("weights.safetensors", "optimizer.safetensors"):
        left, right = (weights(path / file) for path in last)
        assert left.keys() == right.keys()
        assert [name for name in left if not torch.equal(left[name], right[name])] == []


def test_it_cannot_go_on_with_other_adapters(make):
    run = make("a")
    for _ in run:
        run.stop()
    with pytest.raises(ValueError, match=r"began with lora\.r = 2 and cannot go on with 3"):
        make("a", "lora.r=3", resume=True)


def test_adapters_need_a_checkpoint_and_matrices_that_are_there(make):
    with pytest.raises(ValueError, match=r"name it under model\.start"):
        read_run(None, ["lora.r=2"])
    with pytest.raises(ValueError, match="no matrix 'atention', but attention"):
        make("a", "lora.targets=['atention']")
    with pytest.raises(ValueError, match="Lora has alpha"):
        read_run(None, ["model.start=a", "lora.alfa=2"])

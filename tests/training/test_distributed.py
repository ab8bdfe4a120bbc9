"""Two processes beside one: the same losses, weights and files, and what becomes of both when one has a fault."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pellucid.training.batch import NO_TARGET, Batch
from pellucid.training.checkpoints import checkpoints as saved
from pellucid.training.distributed import Processes
from pellucid.training.journal import read_journal
from pellucid.weights.safetensors_file import open_safetensors

pytestmark = pytest.mark.slow
SMALL = [
    "steps=8", "model.n_layers=1", "model.d_model=10", "model.n_heads=2", "data.length=8", "data.rows=3",
    "evaluate.every=4", "evaluate.rows=5", "sample.every=4", "sample.tokens=12", "save.every=2", "save.keep=9",
    "schedule.warmup=2", "log.curve=false", "log.watch_every=4",
]  # fmt: skip


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """What many.py left in its folder, how its processes ended, and what they said."""
    root = tmp_path_factory.mktemp("many")
    (root / "a.txt").write_text("".join(f"{n} times {n} is {n * n}.\n" for n in range(60)), encoding="utf-8")
    program = [sys.executable, str(Path(__file__).with_name("many.py")), str(root)]
    done = subprocess.run(
        [*program, f"data.text={root / 'a.txt'}", *SMALL], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return root, json.loads(done.stdout), done.stderr.splitlines()


def weights(folder):
    return {name: tensor.double() for name, tensor in open_safetensors(folder / "model" / "model.safetensors").items()}


def furthest(one, other):
    """The greatest difference between two sets of tensors of the same names."""
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


def lines(folder, name):
    return [{key: value for key, value in line.items() if key != "seconds"} for line in read_journal(folder / name)]


def same_lines(one, other):
    """Whether two runs wrote the same, but for rounding."""
    for name in ("metrics.jsonl", "samples.jsonl"):
        left, right = lines(one, name), lines(other, name)
        assert [line.keys() for line in left] == [line.keys() for line in right]
        for mine, theirs in zip(left, right, strict=True):
            assert mine == pytest.approx(theirs, abs=1e-5) if name == "metrics.jsonl" else mine == theirs


# --- Two as one ---


@pytest.mark.parametrize("name", ["plain", "parts"])
def test_two_processes_take_the_steps_of_one_in_float64(many, name):
    """A tied model; five rows, of which one has no target, for two processes; once in parts, recomputed and clipped."""
    root, said, _ = many
    assert (said[f"loop {name} 1"], said[f"loop {name} 2"]) == ([0], [0, 0])
    one, two = (torch.load(root / f"{name}{size}.pt") for size in (1, 2))
    assert one["losses"].tolist() == pytest.approx(two["losses"].tolist(), abs=1e-12)
    assert one["tokens"].tolist() == two["tokens"].tolist()
    assert furthest(one, two) < 1e-9
    assert len(set(one["losses"].tolist())) == 5


def test_a_run_of_two_processes_writes_what_one_does(many):
    root, said, _ = many
    assert (said["run 1"], said["run 2"]) == ([0], [0, 0])
    same_lines(root / "run1", root / "run2")
    assert furthest(weights(root / "run1"), weights(root / "run2")) < 1e-5
    watched = [lines(root / name, "watches.jsonl") for name in ("run1", "run2")]
    assert [line["gradients"] for line in watched[0]] == pytest.approx([line["gradients"] for line in watched[1]])
    assert {path.name for path in (root / "run1").iterdir()} == {path.name for path in (root / "run2").iterdir()}


def test_trn_3_two_processes_killed_and_resumed_end_as_an_undisturbed_run(many):
    root, said, _ = many
    assert (said["killed"], said["resumed"]) == ([9, 9], [0, 0])
    assert lines(root / "killed", "metrics.jsonl") == lines(root / "run2", "metrics.jsonl")
    assert furthest(weights(root / "killed"), weights(root / "run2")) == 0.0


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_a_checkpoint_of_one_number_of_processes_is_read_by_another(many, first, second):
    root, said, _ = many
    assert (said[f"half {first}"], said[f"half {second}"]) == ([0] * first, [0] * second)
    folder = root / f"from{first}to{second}"
    sharded = [bool(list(path.glob("shard-*"))) for path in saved(folder / "checkpoints")]
    assert sharded == [first == 2] * sharded.index(second == 2) + [second == 2] * 2
    same_lines(root / "run1", folder)
    assert furthest(weights(root / "run1"), weights(folder)) < 1e-5


def test_torchrun_starts_them(many, tmp_path):
    root, _, _ = many
    changes = [*SMALL, f"data.text={root / 'a.txt'}", f"folder={tmp_path / 'run'}", "steps=4"]
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    program += ["-m", "pellucid", "train", *[part for change in changes for part in ("--set", change)]]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"The model is in {tmp_path / 'run' / 'model'}\n") == 1
    assert done.stdout.count("validation") == 1
    assert len(list((tmp_path / "run" / "checkpoints" / "00000004").glob("shard-*"))) == 2


# --- Faults ---


def test_a_fault_of_all_is_told_once_and_ends_all(many):
    _, said, told = many
    assert (said["wrong"], said["muon"]) == ([2, 2], [2, 2])
    assert len([line for line in told if "absent.txt: no such file" in line]) == 1
    assert len([line for line in told if "muon needs whole matrices" in line]) == 1


def test_when_one_process_is_killed_the_other_ends_with_a_line(many):
    _, said, told = many
    assert said["alone"] == [2, 9]
    assert told.count("another process of this run has ended: go on with --resume") == 1


def test_no_room_for_one_processs_part_is_told_and_leaves_the_last_checkpoint(many):
    root, said, told = many
    assert said["full"] == [2, 2]
    assert len([line for line in told if "could not be written (No space left on device)" in line]) == 1
    assert [path.name for path in (root / "full" / "checkpoints").iterdir()] == ["00000002"]


def test_nothing_else_is_said(many):
    assert len(many[2]) == 4


# --- Rows ---


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_processes_share_the_rows_of_one_batch(size):
    ids = torch.arange(10).reshape(5, 2)
    batch = Batch(ids, ids + 1, mask=torch.ones_like(ids))
    parts = []
    for rank in range(size):
        world = object.__new__(Processes)  # without the others
        world.rank, world.size = rank, size
        parts.append(world.share(batch))
    assert {len(part.ids) for part in parts} == {-(-5 // size)}
    targets = torch.cat([part.targets for part in parts])
    assert torch.equal(targets[:5], batch.targets)
    assert (targets[5:] == NO_TARGET).all()
    assert torch.equal(torch.cat([part.ids for part in parts])[:5], ids)
    assert all(part.mask is not None and part.mask.shape == part.ids.shape for part in parts)

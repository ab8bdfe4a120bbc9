"""The lock of a run's folder."""

import os
import signal
import subprocess
import sys

import pytest

from pellucid.training.run import Run
from pellucid.training.run_folder import lock
from pellucid.training.settings import read_run

HOLDS = """
import sys
from pathlib import Path
from pellucid.training.run_folder import lock
lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def run(folder, resume):
    (folder.parent / "a.txt").write_text("the cat sat on the mat. " * 12, encoding="utf-8")
    changes = ["steps=2", "schedule.warmup=1", "model.n_layers=1", "model.d_model=8", "model.n_heads=2", "data.rows=2"]
    changes += ["data.length=8", "log.curve=false", "sample.every=0", f"data.text={folder.parent / 'a.txt'}"]
    return Run(read_run(None, [*changes, f"folder={folder}"]), resume)


def test_a_second_process_is_told_and_the_end_of_the_first_lets_go(tmp_path):
    folder = tmp_path / "run"
    list(run(folder, resume=False))
    written = (folder / "run.json").stat().st_ino
    program = [sys.executable, "-c", HOLDS, str(folder)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match=f"process {first.pid} trains in this folder: wait for it") as caught:
            run(folder, resume=True)
        assert "\n" not in str(caught.value)
        assert (folder / "run.json").stat().st_ino == written
        first.send_signal(signal.SIGKILL)
        first.wait()
    held = lock(folder)
    assert (folder / ".lock").read_text() == str(os.getpid())
    assert list(run(folder, resume=True)) == []  # one process is no stranger to itself
    os.close(held)

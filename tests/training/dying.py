"""A program that starts runs, kills them with a signal that no process can catch, and lets them go on.

Its children are forks, so that torch is imported once. Prints how each of them ended: 9 killed, 0 by itself.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

from pellucid.training import checkpoints, run_folder, token_file, world
from pellucid.training.run import Run
from pellucid.training.settings import read_run

CHANGES = ["steps=14", "save.every=1", "evaluate.every=5", "sample.every=6"]
MOMENTS = (1, 2, 3, 1, 2, 2)  # steps after which the parent kills; when the signal comes, the child is somewhere


def child(work) -> tuple[int, int]:
    """A fork that does the work; its id, and the end of a pipe that it writes a byte to at each step."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    try:
        work(lambda: os.write(write, b"."))
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr)
        os._exit(1)


def train(folder: Path, changes: list[str]):
    def work(step):
        settings = read_run(None, [*changes, *CHANGES, f"folder={folder}"])
        run = Run(settings, resume=(folder / "run.json").exists())
        for _ in run:
            step()
        run.export()

    return work


def ended(pid: int) -> int:
    return abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def at_moments(folder: Path, changes: list[str]) -> list[int]:
    """Killed from outside, some steps after it began."""
    endings = []
    for moment in MOMENTS:
        pid, pipe = child(train(folder, changes))
        for _ in range(moment):
            os.read(pipe, 1)
        time.sleep(0.001 * moment)
        os.kill(pid, signal.SIGKILL)
        endings.append(ended(pid))
        os.close(pipe)
    return [*endings, ended(child(train(folder, changes))[0])]


def die(*arguments, **options) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(owner, name: str, when) -> None:
    """Let a function kill the process once `when` says so of its arguments; otherwise it does its work."""
    function = getattr(owner, name)
    setattr(owner, name, lambda *a, **k: die() if when(*a) else function(*a, **k))


def at_stage(stage: str) -> None:
    """Arrange for the process to die at one stage of what it writes."""
    calls = iter(range(10**6))
    third = lambda *arguments: next(calls) == 2  # noqa: E731
    match stage:
        case "run":
            dying(run_folder.os, "replace", lambda aside, path: Path(path).name == "run.json")
        case "tokens":
            dying(token_file.os, "replace", lambda aside, path: Path(path).name == "data.tokens")
        case "weights" | "optimizer":
            dying(world, "save_safetensors", lambda path, _: path.stem == stage and "0006" in path.parent.name)
        case "state":
            dying(checkpoints.json, "dump", third)
        case "rename":
            dying(checkpoints.os, "rename", third)
        case "prune":
            dying(checkpoints.shutil, "rmtree", third)


def main() -> None:
    root, *changes = sys.argv[1:]
    torch.set_num_threads(1)
    assert ended(child(train(Path(root) / "whole", changes))[0]) == 0
    said = {"moments": at_moments(Path(root) / "moments", changes)}
    for stage in ("run", "tokens", "weights", "optimizer", "state", "rename", "prune"):
        folder = Path(root) / stage

        def work(step, stage=stage, folder=folder):
            at_stage(stage)
            train(folder, changes)(step)

        said[stage] = [ended(child(work)[0]), ended(child(train(folder, changes))[0])]
    print(json.dumps(said))


if __name__ == "__main__":
    main()

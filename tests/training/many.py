"""A program that trains as one process and as two that meet at a file, kills some, and says what came out.

Its children are forks, so that torch is imported once; they talk over the loopback alone.
"""

import json
import os
import signal
import sys
import traceback
from pathlib import Path

os.environ["GLOO_SOCKET_IFNAME"] = "lo"

import torch
from torch import distributed as dist
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

from pellucid.model.config import Config, Init
from pellucid.model.transformer import Transformer
from pellucid.training.batch import NO_TARGET, Batch
from pellucid.training.distributed import joined
from pellucid.training.loop import Settings, train
from pellucid.training.objectives import next_token
from pellucid.training.optimizers import optimizer_of
from pellucid.training.run import Run
from pellucid.training.schedules import Constant
from pellucid.training.settings import read_run

LONGEST = 240  # seconds, after which a process that waits in vain is ended


class Team:
    """So many processes that do the same work; each gets a function that tells this one of a step."""

    number = iter(range(10**6))

    def __init__(self, root: Path, size: int, work):
        self.pids, self.pipes = [], []
        store = root / f".store{next(Team.number)}"
        for rank in range(size):
            read, write = os.pipe()
            pid = os.fork()
            if not pid:
                self.child(store, rank, size, work, write)
            self.pids.append(pid)
            self.pipes.append(read)
            os.close(write)

    def child(self, store, rank, size, work, pipe) -> None:
        signal.alarm(LONGEST)
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
        try:
            with joined(dist.FileStore(str(store), size) if size > 1 else None) as found:
                work(found, lambda: os.write(pipe, b"."))
            os._exit(0)
        except SystemExit as error:
            os._exit(error.code)
        except ValueError as error:
            os.write(2, f"{error}\n".encode())
            os._exit(2)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def steps(self, count: int) -> None:
        """Wait until each has taken so many."""
        for pipe in self.pipes:
            for _ in range(count):
                os.read(pipe, 1)

    def kill(self, *ranks: int) -> None:
        for rank in ranks:
            os.kill(self.pids[rank], signal.SIGKILL)

    def ended(self) -> list[int]:
        """How each ended: 0 by itself, 2 with a line, 9 killed."""
        for pipe in self.pipes:
            os.close(pipe)
        return [abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) for pid in self.pids]


def run(folder: Path, changes: list[str], *more: str, watches=None):
    """The work of a whole run, gone on with if the folder holds one."""

    def work(found, step):
        resume = found.any((folder / "run.json").exists())  # asked by all, before any of them makes it
        training = Run(read_run(None, [*changes, *more, f"folder={folder}"]), resume, watches, world=found)
        for _ in training:
            step()
        training.export()

    return work


def stopping(folder: Path, changes: list[str], at: int, *more: str):
    """A run that one of the processes, the last, wants to stop after so many steps."""

    def work(found, step):
        training = Run(
            read_run(None, [*changes, *more, f"folder={folder}"]), (folder / "run.json").exists(), world=found
        )
        for report in training:
            if found.rank == found.size - 1 and report.record.step == at - 2:
                training.stop()
            step()

    return work


# --- The loop alone, in float64 ---


def batches(steps: int, rows: int) -> list[Batch]:
    draw = torch.Generator().manual_seed(5)
    found = []
    for _ in range(steps):
        piece = torch.randint(0, 23, (rows, 9), generator=draw)
        targets = piece[:, 1:].clone()
        targets[0, 2:] = NO_TARGET
        targets[-1] = NO_TARGET
        found.append(Batch(piece[:, :-1].clone(), targets))
    return found


def loop(path: Path, **settings):
    """Five steps of a tied model in float64; losses, gradient norms and weights go to a file."""

    def work(found, step):
        torch.manual_seed(found.rank)  # weights are the first process's
        shape = Config(vocab_size=23, context_length=8, n_layers=2, d_model=10, n_heads=2, d_ff=15, init=Init(0.3))
        transformer = Transformer(shape).double()
        assert shape.tied
        objective = found.spread(transformer, next_token)
        data = [found.share(batch) for batch in batches(5, 5)]
        records = list(
            train(transformer, data, objective, optimizer_of(transformer), Constant(1e-2), Settings(**settings))
        )
        whole = found.whole(transformer)
        if whole is not None:
            weights = {name: weight.detach() for name, weight in whole.named_parameters()}
            grads = {f"grad {name}": weight.grad for name, weight in whole.named_parameters()}
            numbers = {"losses": [r.loss for r in records], "norms": [r.grad_norm for r in records]}
            numbers = {name: torch.tensor(values, dtype=torch.float64) for name, values in numbers.items()}
            torch.save({**weights, **grads, **numbers, "tokens": torch.tensor([r.tokens for r in records])}, path)

    return work


def watched(transformer) -> dict[str, float]:
    return {"gradients": float(sum(weight.grad.double().square().sum() for weight in transformer.parameters()))}


def full(folder: Path, changes: list[str]):
    """A run whose second process finds no room when it writes its part of the checkpoint of step 4."""

    def work(found, step):
        write = HuggingFaceStorageWriter.write_data

        def fails(writer, *plan):
            if found.rank == 1 and "00000004" in str(writer.path):
                raise OSError(28, "No space left on device")
            return write(writer, *plan)

        HuggingFaceStorageWriter.write_data = fails
        run(folder, changes)(found, step)

    return work


def main() -> None:
    root, changes = Path(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    said: dict[str, object] = {}

    def team(name: str, size: int, work) -> None:
        said[name] = Team(root, size, work).ended()

    for name, options in {"plain": {}, "parts": {"rows": 2, "recompute": True, "clip": 0.5}}.items():
        for size in (1, 2):
            team(f"loop {name} {size}", size, loop(root / f"{name}{size}.pt", **options))
    for size in (1, 2):
        team(f"run {size}", size, run(root / f"run{size}", changes, watches={"depth": watched}))
    # Both killed after some steps, and then to the end.
    killed = Team(root, 2, run(root / "killed", changes, watches={"depth": watched}))
    killed.steps(5)
    killed.kill(0, 1)
    said["killed"] = killed.ended()
    team("resumed", 2, run(root / "killed", changes, watches={"depth": watched}))
    # Half by one number of processes, the other half by another.
    for first, second in ((1, 2), (2, 1)):
        folder = root / f"from{first}to{second}"
        team(f"half {first}", first, stopping(folder, changes, 5))
        team(f"half {second}", second, run(folder, changes))
    # One is killed, and the other must not wait for it.
    alone = Team(root, 2, run(root / "alone", changes))
    alone.steps(1)
    alone.kill(1)
    said["alone"] = alone.ended()
    team("wrong", 2, run(root / "wrong", changes, "data.text=absent.txt"))
    team("muon", 2, run(root / "muon", changes, "optimizer.name=muon"))
    team("full", 2, full(root / "full", changes))
    print(json.dumps(said))


if __name__ == "__main__":
    main()

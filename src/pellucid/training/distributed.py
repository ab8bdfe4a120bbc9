"""Many processes that train one model: each holds a part of every weight, and runs some rows of each batch.

Started as `torchrun -m pellucid train`. The parts are those of torch's FSDP2 (Zhao et al. 2023): a sublayer's weights
are gathered when it runs and given back after it, and of its gradients each process keeps the sum of its part.
"""

import copy
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor

from ..model.transformer import Transformer
from . import shards
from .batch import Batch, Objective
from .sublayers import sublayers
from .world import Found, World

PATIENCE = 30 * 60  # seconds for a process that is late, before it is taken for lost
LONG = 7 * 24 * 60 * 60  # seconds for what the first process prepares alone


class LostError(ValueError):
    """A process of the run is gone, or has said itself what is wrong."""


class Processes(World):
    """This process among the `size` of a run, numbered by `rank`; they meet at `store`."""

    def __init__(self, store: Store, rank: int, size: int):
        self.rank, self.size = rank, size
        self._store, self._turns = PrefixStore("pellucid", store), 0
        self._form: Transformer | None = None
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
        patience = timedelta(seconds=PATIENCE)
        dist.init_process_group(store=PrefixStore("group", store), rank=rank, world_size=size, timeout=patience)

    def first(self, work: Callable[[], Found]) -> Found:
        self._turns += 1
        turn = f"turn/{self._turns}"
        if not self.leads:
            self._store.wait([turn], timedelta(seconds=LONG))
            if self._store.get(turn) != b"done":
                raise LostError("the first process could not prepare the run")
            return work()
        said = "failed"
        try:
            found = work()
            said = "done"
        finally:
            self._store.set(turn, said)
        return found

    def any(self, wanted: bool) -> bool:
        return bool(self._sum(float(wanted))[0])

    def wait(self) -> None:
        dist.barrier()

    def share(self, batch: Batch) -> Batch:
        """As many rows for each; where they do not divide, rows without targets are added."""
        each = -(-len(batch.ids) // self.size)
        return batch.padded(each * self.size).rows(self.rank * each, (self.rank + 1) * each)

    def spread(self, transformer: Transformer, objective: Objective) -> Objective:
        self._form = _hollow(transformer)
        for weight in transformer.parameters():
            dist.broadcast(weight.data, 0)
        mesh = init_device_mesh(transformer.W_U.device.type, (self.size,))
        for sublayer in sublayers(transformer):
            fully_shard(sublayer, mesh=mesh, reshard_after_forward=True)
        measured = _Measured(transformer, objective)
        fully_shard(measured, mesh=mesh, reshard_after_forward=True)
        for module in measured.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # a sum over processes, as over rows
                module.set_force_sum_reduction_for_comms(True)  # gloo knows no other

        def over_all(_: Transformer, batch: Batch) -> tuple[Tensor, int]:
            with warnings.catch_warnings():
                # Of changes in place to what a sublayer gives back, of which there are none.
                warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)
                losses, count = measured(batch)
            total, targets = self._sum(losses.item(), count)
            # The value is everyone's, the gradient flows to this process's rows.
            return losses + (total - losses.detach()), int(targets)

        return over_all

    def whole(self, transformer: Transformer) -> Transformer | None:
        parts = dict(transformer.named_parameters())
        found = self.form(transformer) if self.leads else None
        own = {} if found is None else dict(found.named_parameters())
        with torch.no_grad():
            for name, weight in parts.items():
                full, grad = _full(weight.detach()), None if weight.grad is None else _full(weight.grad)
                if name in own:
                    own[name].copy_(full)
                    own[name].grad = grad
        return found

    def form(self, transformer: Transformer) -> Transformer:
        assert self._form is not None, "spread() keeps the form"
        device = transformer.W_U.device
        found = copy.deepcopy(self._form).to_empty(device=device)
        return found.train(transformer.training)

    def write(self, folder: Path, weights: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> None:
        shards.write(folder, {**weights, **optimizer})

    def _sum(self, *values: float) -> list[float]:
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        summed = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(summed)
        return summed.tolist()

    def speaks(self) -> bool:
        """Whether this process is the first that says what is wrong."""
        try:
            return self._store.add("said", 1) == 1
        except RuntimeError:  # whoever kept the store is gone
            return self.leads


class _Measured(nn.Module):
    """An objective as a module: what it reads of the transformer is gathered as long as it runs."""

    def __init__(self, transformer: Transformer, objective: Objective):
        super().__init__()
        self.transformer, self.objective = transformer, objective

    def forward(self, batch: Batch) -> tuple[Tensor, int]:
        return self.objective(self.transformer, batch)


@contextmanager
def joined(store: Store | None = None) -> Iterator[World]:
    """The world that this process was started in: by torchrun as one of many, or alone.

    A fault of any process ends all of them; the first to meet one says it.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    if store is None:
        store = next(iter(rendezvous("env://", rank, size)))[0]
    world = Processes(store, rank, size)
    try:
        yield world
        world.wait()
        dist.destroy_process_group()
    except (ValueError, OSError, RuntimeError) as error:
        known = isinstance(error, (ValueError, OSError)) and not isinstance(error, LostError)
        if not (known or _is_lost(error)):
            raise
        if not world.speaks():
            raise SystemExit(2) from error
        reason = str(error) if known else "another process of this run has ended: go on with --resume"
        raise ValueError(reason if world.leads else f"process {rank}: {reason}") from error


def _is_lost(error: Exception) -> bool:
    """Whether an error says that another process cannot be reached."""
    return isinstance(error, (LostError, dist.DistError)) or "gloo" in str(error) or "Connection" in str(error)


def _hollow(transformer: Transformer) -> Transformer:
    """A copy without numbers."""
    hollow = {id(weight): nn.Parameter(weight.to("meta"), weight.requires_grad) for weight in transformer.parameters()}
    return copy.deepcopy(transformer, hollow)


def _full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

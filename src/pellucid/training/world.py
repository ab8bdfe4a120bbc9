"""The processes that train one model. This is the case of one, which every run is unless it was started as many."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ..model.transformer import Transformer
from ..weights.safetensors_file import save_safetensors
from .batch import Batch, Objective

WEIGHTS, OPTIMIZER = "weights.safetensors", "optimizer.safetensors"
Found = TypeVar("Found")


class World:
    """One process, which holds all of the model, reads all rows and has nobody to wait for; `Processes` is many."""

    rank, size = 0, 1

    @property
    def leads(self) -> bool:
        """Whether this process writes the files and speaks."""
        return self.rank == 0

    def seed(self, seed: int, step: int) -> None:
        """Set torch's random numbers to those of a step: whoever begins there draws what a longer run does."""
        drawn = np.random.SeedSequence((seed, step, self.rank)).generate_state(1, np.uint64)
        torch.manual_seed(int(drawn[0]))

    def first(self, work: Callable[[], Found]) -> Found:
        """What `work` gives; of many processes the first does it before all others do."""
        return work()

    def any(self, wanted: bool) -> bool:
        """Whether a process wants it."""
        return wanted

    def wait(self) -> None:
        """Go on when all are here."""

    def share(self, batch: Batch) -> Batch:
        """This process's rows of a batch."""
        return batch

    def spread(self, transformer: Transformer, objective: Objective) -> Objective:
        """Give each process its part of the weights; the objective over all rows of a batch, of which each has some."""
        return objective

    def whole(self, transformer: Transformer) -> Transformer | None:
        """The model with all of its weights and gradients, for the process that leads; None for the others."""
        return transformer

    def form(self, transformer: Transformer) -> Transformer:
        """A model of the same shape, whose weights can be set."""
        return transformer

    def write(self, folder: Path, weights: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> None:
        """Write the tensors of a checkpoint."""
        save_safetensors(folder / WEIGHTS, weights)
        save_safetensors(folder / OPTIMIZER, optimizer)

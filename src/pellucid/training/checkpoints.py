"""Checkpoints of a run: all that the next step depends on, so that a run goes on as if it had never stopped.

A checkpoint is a folder named by the number of steps taken, with weights.safetensors (the transformer's own names),
optimizer.safetensors (what the optimiser remembers) and state.json. Many processes write a shard each in place of the
two files; any number of processes reads either. It is written aside and moved into place: a folder with that name is
whole.
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..model.plain import from_plain
from ..model.transformer import Transformer
from ..weights.errors import CheckpointError
from ..weights.files import check_regular, parse_json, sync_folder
from ..weights.safetensors_file import open_safetensors
from . import shards
from .optimizers import Together, load_state_tensors, state_tensors
from .world import OPTIMIZER, WEIGHTS, World

STATE = "state.json"


@dataclass(frozen=True)
class Progress:
    """How far a run is: steps taken, which is also the number of the next batch; the loss on the validation data at
    this step, if it was taken; steps in a row that were skipped."""

    steps: int
    validation: float | None = None
    skipped: int = 0


def save(folder: Path, transformer: Transformer, optimizer: Together, progress: Progress, world: World) -> Path:
    """Write the checkpoint of a step into a run's folder of checkpoints; one that stands there is left as it is.

    Raises CheckpointError if it cannot be written; those that are there stay as they are.
    """
    path = folder / f"{progress.steps:08}"
    if path.exists():
        return path
    aside = folder / f".{path.name}.tmp"
    try:
        if world.leads:
            if aside.exists():  # left behind by the end of a process
                shutil.rmtree(aside)
            aside.mkdir(parents=True)
        world.wait()
        world.write(aside, transformer.state_dict(), state_tensors(optimizer, transformer))
        if world.leads:
            _finish(aside, path, progress)
        world.wait()
    except BaseException as error:
        if world.leads:
            shutil.rmtree(aside, ignore_errors=True)
        if isinstance(error, OSError):
            raise CheckpointError(
                f"{path}: the checkpoint could not be written ({error.strerror or error}); those before it are whole: "
                "make room, and go on with --resume"
            ) from error
        raise
    return path


def restore(path: Path, transformer: Transformer, optimizer: Together, world: World) -> Progress:
    """Put a checkpoint into a transformer and an optimiser of the same shapes. Raises CheckpointError for a damaged
    one or one of another shape."""
    progress, parts = progress_of(path), world.size > 1
    load_weights(path, transformer, parts)
    try:
        load_state_tensors(optimizer, transformer, _optimizer_tensors(path, transformer, parts))
    except (ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    return progress


def load_weights(path: Path, transformer: Transformer, parts: bool = False) -> None:
    """Put a checkpoint's weights into a transformer of its shape, or of `parts` that many processes hold, which all do
    so together. Raises CheckpointError."""
    own, whole = transformer.state_dict(), _is_whole(path, parts)
    found = open_safetensors(path / WEIGHTS) if whole else {}
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items()} if whole else _shapes(path, of_weights=True)
    for name in sorted(own.keys() | shapes.keys()):
        ours, theirs = tuple(own[name].shape) if name in own else "nothing", shapes.get(name, "nothing")
        if ours != theirs:
            raise CheckpointError(
                f"{path}: a checkpoint of another shape: {name} is {theirs} there and {ours} in this run"
            )
    if whole:
        transformer.load_state_dict(dict(found))
    else:
        shards.read(path, own, parts)


def progress_of(path: Path) -> Progress:
    """How far the run was. Raises CheckpointError."""
    check_regular(path / STATE)
    try:
        return from_plain(Progress, parse_json((path / STATE).read_bytes(), path / STATE, "the state"), "state")
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{path / STATE}: {error}") from error


def checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints in a folder, the earliest first."""
    found = [path for path in folder.iterdir() if path.name.isdecimal()] if folder.is_dir() else []
    return sorted(found, key=lambda path: int(path.name))


def best(folder: Path) -> Path | None:
    """The checkpoint with the least loss on the validation data, None where none was taken."""
    losses = [(progress_of(path).validation, path) for path in checkpoints(folder)]
    measured = [(loss, path) for loss, path in losses if loss is not None]
    return min(measured)[1] if measured else None


def prune(folder: Path, keep: int) -> None:
    """Take away all but the last `keep` checkpoints and the best, and what unfinished ones left behind."""
    kept = [*checkpoints(folder)[-keep:], best(folder)]
    for path in folder.iterdir():
        unfinished = path.name.startswith(".") and path.name.endswith(".tmp")
        if unfinished or (path.name.isdecimal() and path not in kept):
            # Renamed first, so that a checkpoint that is only half gone does not look whole.
            gone = path if unfinished else path.rename(folder / f".{path.name}.gone.tmp")
            shutil.rmtree(gone, ignore_errors=True)


def _finish(aside: Path, path: Path, progress: Progress) -> None:
    """Say how far the run is, and move the checkpoint to its place."""
    with (aside / STATE).open("x", encoding="utf-8") as file:
        json.dump(asdict(progress), file)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(aside)
    os.rename(aside, path)
    sync_folder(path.parent)


def _optimizer_tensors(path: Path, transformer: Transformer, parts: bool) -> dict[str, Tensor]:
    weights = dict(transformer.named_parameters())
    if _is_whole(path, parts):
        # Copies: the optimiser writes to its state, and the file's pages must not stand behind it.
        return {name: tensor.clone() for name, tensor in open_safetensors(path / OPTIMIZER).items()}
    tensors = {}
    for name, shape in _shapes(path, of_weights=False).items():
        weight = weights.get(name.partition("|")[0])
        if weight is not None and tuple(weight.shape) == shape:
            tensors[name] = torch.zeros_like(weight.detach())
        else:
            tensors[name] = torch.zeros(shape)
    shards.read(path, tensors, parts)
    return tensors


def _is_whole(path: Path, parts: bool) -> bool:
    """Whether a checkpoint and the model that it is for are both in one piece."""
    return not parts and not any(path.glob(shards.FILES))


def _shapes(path: Path, of_weights: bool) -> dict[str, tuple[int, ...]]:
    """Shapes of what a checkpoint holds: of weights, or of what the optimiser keeps of one, under "weight|what"."""
    return {name: shape for name, shape in shards.shapes(path).items() if ("|" in name) != of_weights}

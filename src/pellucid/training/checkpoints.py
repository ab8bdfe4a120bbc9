"""Checkpoints of a run: all that the next step depends on, so that a run goes on as if it had never stopped.

A checkpoint is a folder named by the number of steps taken, with weights.safetensors (the transformer's own names),
optimizer.safetensors (what the optimiser remembers, and the states of torch's random numbers) and state.json. It is
written aside and moved into place: a folder with that name is whole.
"""

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..model.plain import from_plain
from ..model.transformer import Transformer
from ..weights.errors import CheckpointError
from ..weights.files import check_regular, parse_json, sync_folder
from ..weights.safetensors_file import open_safetensors, save_safetensors
from .optimizers import Together, load_state_tensors, state_tensors

WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"
RANDOM = "random|"  # before the name of a device, among the optimiser's tensors


@dataclass(frozen=True)
class Progress:
    """How far a run is: steps taken, which is also the number of the next batch; the loss on the validation data at
    this step, if it was taken; steps in a row that were skipped."""

    steps: int
    validation: float | None = None
    skipped: int = 0


def save(folder: Path, transformer: Transformer, optimizer: Together, progress: Progress) -> Path:
    """Write the checkpoint of a step into a run's folder of checkpoints; one that stands there is left as it is."""
    path = folder / f"{progress.steps:08}"
    if path.exists():
        return path
    aside = folder / f".{path.name}.{secrets.token_hex(8)}.tmp"
    aside.mkdir(parents=True)
    try:
        save_safetensors(aside / WEIGHTS, transformer.state_dict())
        save_safetensors(aside / OPTIMIZER, state_tensors(optimizer, transformer) | _random_states())
        with (aside / STATE).open("x", encoding="utf-8") as file:
            json.dump(asdict(progress), file)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(aside)
        os.rename(aside, path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    sync_folder(folder)
    return path


def restore(path: Path, transformer: Transformer, optimizer: Together) -> Progress:
    """Put a checkpoint into a transformer and an optimiser of the same shapes, and torch's random numbers where they
    were. Raises CheckpointError for a damaged one or one of another shape."""
    progress = progress_of(path)
    load_weights(path, transformer)
    tensors = dict(open_safetensors(path / OPTIMIZER))
    random = {name: tensors.pop(name) for name in list(tensors) if name.startswith(RANDOM)}
    try:
        # Copies: the optimiser writes to its state, and the file's pages must not stand behind it.
        load_state_tensors(optimizer, transformer, {name: tensor.clone() for name, tensor in tensors.items()})
        _set_random_states(random)
    except (ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path / OPTIMIZER}: {error}") from error
    return progress


def load_weights(path: Path, transformer: Transformer) -> None:
    """Put a checkpoint's weights into a transformer of its shape. Raises CheckpointError."""
    found, own = open_safetensors(path / WEIGHTS), transformer.state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
    for name in sorted(own.keys() | shapes.keys()):
        ours, theirs = tuple(own[name].shape) if name in own else "nothing", shapes.get(name, "nothing")
        if ours != theirs:
            raise CheckpointError(
                f"{path}: a checkpoint of another shape: {name} is {theirs} there and {ours} in this run"
            )
    transformer.load_state_dict(dict(found))


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


def _random_states() -> dict[str, Tensor]:
    states = {f"{RANDOM}cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states |= {f"{RANDOM}cuda:{n}": state for n, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def _set_random_states(states: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(states[f"{RANDOM}cpu"].clone() if f"{RANDOM}cpu" in states else torch.get_rng_state())
    for name, state in states.items():
        if name != f"{RANDOM}cpu":
            torch.cuda.set_rng_state(state.clone(), name.removeprefix(RANDOM))

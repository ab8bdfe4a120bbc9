"""The folder of a run: whose it is, and whether this machine can do what its settings ask for."""

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..weights.files import shown
from ..weights.saving import TOKENIZER_FILES
from .recording import has_board
from .settings import SETTINGS, RunSettings, read_run

LOCK = ".lock"
BEGUN = ("checkpoints", "metrics.jsonl")
# What decides which numbers come out; the rest may differ when a run goes on.
DECIDING = ("seed", "steps", "objective", "smoothing", "model", "data", "optimizer", "schedule", "lora", "loop")


def claim(folder: Path, settings: RunSettings, resume: bool) -> int:
    """Put the run's settings into its folder, and lock it; see `lock`.

    A folder whose run failed before its first step is begun anew.
    Raises ValueError if a new run finds another there, or other things; if one that goes on finds none, or one with
    other settings; if another process trains there.
    """
    _check_folder(folder, settings, resume)
    folder.mkdir(parents=True, exist_ok=True)
    held = lock(folder)
    _check_folder(folder, settings, resume)  # once more: until now another process could change it
    if not resume:
        _clear(folder)
    aside = folder / f".{SETTINGS}.tmp"
    aside.write_text(json.dumps(asdict(settings), indent=2) + "\n", encoding="utf-8")
    os.replace(aside, folder / SETTINGS)
    return held


def lock(folder: Path) -> int:
    """Hold the folder for this process, until the file whose number is given back is closed, or the process ends in
    whatever way. Raises ValueError if another process holds it."""
    held = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        other = os.read(held, 20).decode(errors="replace") or "another"
        os.close(held)
        raise ValueError(f"{folder}: process {other} trains in this folder: wait for it, or choose another") from error
    os.ftruncate(held, 0)
    os.write(held, str(os.getpid()).encode())
    return held


def check_machine(settings: RunSettings, processes: int) -> None:
    """Set the number of threads. Raises ValueError for a device or a package that is not there, or what many processes
    cannot do."""
    if processes > 1 and settings.optimizer.name == "muon":
        raise ValueError("muon needs whole matrices, and many processes hold them in parts: take adamw, or one process")
    try:
        torch.empty(0, device=settings.device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {settings.device!r} cannot be used here ({error})") from error
    if settings.log.tensorboard and not has_board():
        raise ValueError("log.tensorboard needs the package tensorboard: pip install tensorboard")
    if settings.threads:
        torch.set_num_threads(settings.threads)


def _check_folder(folder: Path, settings: RunSettings, resume: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder for the run, found a file")
    held = sorted(path.name for path in folder.iterdir() if path.name[0] != ".") if folder.exists() else []
    if SETTINGS in held:
        if not resume and not _has_begun(folder):
            return
        if not resume:
            raise ValueError(f"{folder} holds a run: go on with it (--resume), or choose another folder")
        _check_same(settings, read_run(folder))
    elif resume:
        raise ValueError(f"{folder} holds no run to go on with: leave --resume out to begin one")
    elif held:
        raise ValueError(f"{folder} holds other things than a run: {shown(held)}. Choose another folder")


def _has_begun(folder: Path) -> bool:
    """Whether a run took a step: one that failed before holds nothing to go on with."""
    return any(path.exists() and (path.is_dir() or path.stat().st_size) for path in map(folder.joinpath, BEGUN))


def _clear(folder: Path) -> None:
    """Take away what a run made that never took a step: its settings, tokens and tokenizer."""
    for path in [*folder.glob("*.tokens"), *(folder / name for name in (SETTINGS, *TOKENIZER_FILES))]:
        path.unlink(missing_ok=True)


def _check_same(now: RunSettings, then: RunSettings) -> None:
    ours, theirs = _flat(asdict(now)), _flat(asdict(then))
    for key in sorted(ours.keys() | theirs.keys()):
        if key.split(".")[0] in DECIDING and ours.get(key) != theirs.get(key):
            raise ValueError(
                f"this run began with {key} = {theirs.get(key)!r} and cannot go on with {ours.get(key)!r}: "
                "leave it as it was, or begin a new run in another folder"
            )


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": _listed(value)}
    return found


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value

"""A scan on disk: scan.json names the file with its tensors, so that the two always fit.

Tensors are written beside the old ones under a new name; then scan.json is replaced, in one step, and the old ones are
taken away.
"""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from .put import put

SCHEMA = "pellucid neurons 1"
STATE = "scan.json"
MOST_BYTES = 100_000  # of scan.json
_FIELDS = {"settings": dict, "model": str, "digest": str, "rows": int, "tokens": int, "done": bool, "tensors": str}


def holds_scan(folder: str | os.PathLike[str]) -> bool:
    """Whether a scan was kept in this folder."""
    return (Path(folder) / STATE).is_file()


def write(folder: str | os.PathLike[str], state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Keep a scan in a folder, which is made if it is not there; whoever reads it meanwhile sees the old or the new."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    file = f"neurons-{state['rows']:09}-{secrets.token_hex(4)}.safetensors"
    try:
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, folder / file)
        _sync(folder / file)
        text = json.dumps({"schema": SCHEMA, **state, "tensors": file}, indent=1)
        put(folder / STATE, f"{text}\n".encode())
    except BaseException:
        (folder / file).unlink(missing_ok=True)
        raise
    for old in folder.glob("neurons-*.safetensors"):
        if old.name != file:
            old.unlink(missing_ok=True)


def read(folder: str | os.PathLike[str], device: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What scan.json says, each field of its type, and the tensors that it names. Raises ValueError."""
    path = Path(folder) / STATE
    state = _state(path)
    file = path.parent / state["tensors"]
    try:
        return state, load_file(file, device=device)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file}: expected the tensors of a scan, found none ({error})") from error


def _state(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path}: no such file: expected a folder with a scan of neurons")
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path}: expected at most {MOST_BYTES} bytes, got {path.stat().st_size}")
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON, got something else ({error})") from error
    if not isinstance(state, dict) or state.get("schema") != SCHEMA:
        raise ValueError(f"{path}: expected the schema {SCHEMA!r}: scan again, into another folder")
    for name, kind in _FIELDS.items():
        value = state.get(name)
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise ValueError(f"{path}: {name} must be a {kind.__name__}, got {str(value)[:80]!r}")
    file = state["tensors"]
    if Path(file).name != file or not file.startswith("neurons-") or (path.parent / file).is_symlink():
        raise ValueError(f"{path}: tensors must name a file beside it, got {file[:80]!r}")
    return state


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())

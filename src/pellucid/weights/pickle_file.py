"""Weights saved with torch.save (`.pt`, `.pth`, `.bin`): read as tensors only, never as code."""

import os
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from .errors import CheckpointError
from .files import check_downloaded, check_regular, shown

# where training scripts put the weights, beside the optimizer's state, settings and counters
WRAPPERS = ("model", "state_dict", "model_state_dict")
MOST_SHARED = 4  # names for the same numbers, on average
_PICKLE, _ZIP = b"\x80", b"PK"  # how what torch.save writes begins: its older form, and its newer one
_NEEDED = re.compile(r"\bGLOBAL ([\w.]+)")  # in torch's words for a refusal


def load_pickle(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The weights of a file written by torch.save, by name, on the CPU; memory-mapped where the file allows it.

    The file holds either names and tensors, or such a table under `model`, `state_dict` or `model_state_dict`, beside
    which other entries (an optimizer's state, say) are left alone. Raises CheckpointError.
    """
    path = Path(path)
    return weights_of(path, read_pickle(path))


def read_pickle(path: Path) -> Mapping[object, object]:
    """Everything that a file written by torch.save holds: a table of tensors, plain values and tables of them.

    A pickle can name any function to be called when it is read; only the few that rebuild tensors are allowed here, and
    there is no way to allow more. Raises CheckpointError.
    """
    check_regular(path)
    with path.open("rb") as file:
        _check_start(path, file.read(64))
    try:
        mapped = is_mapped(path)
        if mapped:
            _check_stored(path)
        with warnings.catch_warnings():  # of a kind of pickle that torch does not write: it is read, or refused below
            warnings.simplefilter("ignore", UserWarning)
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except CheckpointError:
        raise
    except Exception as error:  # a damaged stream can end in any error
        raise CheckpointError(f"{path}: {_refusal(str(error))}") from error
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path}: expected a table of names and tensors, got a {type(content).__name__}")
    return content


def _check_start(path: Path, start: bytes) -> None:
    check_downloaded(path, start)
    if not start:
        raise CheckpointError(f"{path}: expected a torch.save file, got an empty one. Download it again")
    if not start.startswith((_PICKLE, _ZIP)):
        raise CheckpointError(
            f"{path}: expected a torch.save file, got one that begins with {shown([start[:16]])}. "
            "Check what this file is"
        )


def _refusal(reason: str) -> str:
    """What is wrong with a file that torch refuses, whose own words tell how to run the file's code all the same."""
    needed = _NEEDED.search(reason)
    if needed is None:
        return (
            "expected a torch.save file that holds tensors and plain values only, got one that is damaged or of "
            "another kind. Download it again, or have its author save a state_dict as safetensors"
        )
    return (
        "expected a torch.save file that holds tensors and plain values only, got one that needs "
        f"{shown([needed[1]])}: no code of a pickle is run here. Convert it to safetensors where it came from"
    )


def is_mapped(path: Path) -> bool:
    """Whether the tensors of a torch.save file are pages of it; older files are one stream, read as a whole."""
    return zipfile.is_zipfile(path)


def weights_of(path: Path, content: Mapping[object, object]) -> dict[str, Tensor]:
    """The weights in what `read_pickle` gave, by name. Raises CheckpointError."""
    return _tensors(path, _unwrap(path, content))


def _check_stored(path: Path) -> None:
    """Refuse packed entries, which torch.save never writes: a few bytes of them can unpack to more than the memory."""
    with zipfile.ZipFile(path) as archive:
        packed = [entry.filename for entry in archive.infolist() if entry.compress_type != zipfile.ZIP_STORED]
    if packed:
        raise CheckpointError(
            f"{path}: expected a file as torch.save writes it, got one whose entries are compressed: {shown(packed)}. "
            "Unpack it and save it again with torch.save"
        )


def _unwrap(path: Path, content: Mapping[object, object]) -> Mapping[object, object]:
    tables = {key: table for key in WRAPPERS if isinstance(table := content.get(key), Mapping)}
    if len(tables) > 1:
        raise CheckpointError(
            f"{path}: expected the weights under one of {shown(WRAPPERS)}, got {shown(tables)}. Save only one of them"
        )
    return next(iter(tables.values())) if tables else content


def _tensors(path: Path, table: Mapping[object, object]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, value in table.items():
        dense = isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta
        if not isinstance(name, str) or not dense:
            raise CheckpointError(
                f"{path}: expected names and dense tensors, got {shown([name])} with a {type(value).__name__}. "
                f"Save only the weights, model.state_dict(), or put them under one of {shown(WRAPPERS)}"
            )
        assert isinstance(value, Tensor)
        tensors[name] = value.detach()
    _check_sizes(path, tensors)
    return tensors


def _check_sizes(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that claim more numbers than the file holds, by repeating or sharing the same few.

    Tied weights are in the file once, under two names or three.
    """
    held = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors.values()}
    claimed = sum(tensor.nbytes for tensor in tensors.values())
    wide = [name for name, tensor in tensors.items() if tensor.nbytes > tensor.untyped_storage().nbytes()]
    if wide or claimed > MOST_SHARED * sum(held.values()):
        raise CheckpointError(
            f"{path}: its tensors claim {claimed} bytes, but only {sum(held.values())} are there"
            + (f"; repeated: {shown(wide)}" if wide else "")
            + ". Save the weights again, each with its own numbers"
        )

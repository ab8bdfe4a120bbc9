"""Weights saved with torch.save (`.pt`, `.pth`, `.bin`): read as tensors only, never as code."""

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from .errors import CheckpointError
from .files import check_downloaded, check_regular, shown

# where training scripts put the weights, beside the optimizer's state, settings and counters
WRAPPERS = ("model", "state_dict", "model_state_dict")


def load_pickle(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The weights of a file written by torch.save, by name, on the CPU; memory-mapped where the file allows it.

    The file holds either names and tensors, or such a table under `model`, `state_dict` or `model_state_dict`, beside
    which other entries (an optimizer's state, say) are left alone. A pickle can name any function to be called when it
    is read; only the few that rebuild tensors are allowed here, and there is no way to allow more. Raises
    CheckpointError.
    """
    path = Path(path)
    check_regular(path)
    with path.open("rb") as file:
        check_downloaded(path, file.read(64))
    try:
        # older files are one stream of pickles, which cannot be mapped
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # a damaged stream can end in any error
        reason = str(error).strip().split("\n")[0][:300]
        raise CheckpointError(
            f"{path}: expected a torch.save file that holds tensors and plain values only, got "
            f"{type(error).__name__}: {reason} Download it again, or have its author save a state_dict as safetensors"
        ) from error
    return _tensors(path, _unwrap(path, content))


def _unwrap(path: Path, content: object) -> Mapping[object, object]:
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path}: expected a table of names and tensors, got a {type(content).__name__}")
    tables = {key: content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping)}
    if len(tables) > 1:
        raise CheckpointError(
            f"{path}: expected the weights under one of {shown(WRAPPERS)}, got {shown(tables)}. Save only one of them"
        )
    return next(iter(tables.values()), content)


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
    return tensors

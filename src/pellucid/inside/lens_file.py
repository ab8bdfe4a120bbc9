"""Fitted lenses in files: safetensors, with what the file holds as JSON in its header."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .put import put

KEY = "pellucid"  # one key, so that the same lens is the same bytes: the header does not keep the order of several


def write_lens(path: str | os.PathLike[str], kind: str, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors of one kind of lens; whoever reads `path` meanwhile sees the old file or the whole new one."""
    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    put(path, save(held, {KEY: json.dumps({"kind": kind, "version": 1})}))


def read_lens(path: str | os.PathLike[str], kind: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Read a lens of this kind whose tensors have these names and shapes, all finite. Raises ValueError."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: expected a file with a {kind}, and there is none")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            about = _about(path, file.metadata())
            if about != {"kind": kind, "version": 1}:
                raise ValueError(f"{path}: expected a {kind} of version 1, got {str(about)[:80]}")
            if sorted(file.keys()) != sorted(shapes):
                raise ValueError(f"{path}: a {kind} holds {', '.join(shapes)}, got {str(sorted(file.keys()))[:80]}")
            held = {name: file.get_slice(name) for name in shapes}
            for name, shape in shapes.items():
                if (got := tuple(held[name].get_shape())) != shape:
                    raise ValueError(
                        f"{path}: {name} must have shape {list(shape)} for this model, got {list(got)}: "
                        "it is of another model"
                    )
            found = {name: file.get_tensor(name) for name in shapes}
    except SafetensorError as error:
        raise ValueError(f"{path}: not a sound safetensors file ({error})") from error
    for name, tensor in found.items():
        if tensor.dtype not in (torch.float32, torch.float64) or not bool(tensor.isfinite().all()):
            raise ValueError(f"{path}: {name} must hold finite numbers in fp32 or fp64, got {tensor.dtype}")
    return found


def _about(path: Path, metadata: Mapping[str, str] | None) -> object:
    try:
        return json.loads((metadata or {}).get(KEY, "null"))
    except ValueError as error:
        raise ValueError(f"{path}: its header is no JSON ({error})") from error

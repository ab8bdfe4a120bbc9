"""Opening a checkpoint: files in, a transformer out."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .checkpoint import EDITS, Checkpoint, assemble, naming
from .device import check_device
from .errors import CheckpointError
from .families import FAMILIES
from .family import Family
from .files import check_downloaded, check_regular, file_in, parse_json, shown
from .generation_settings import check_generation
from .gguf_loading import open_gguf
from .known import locate
from .llama2c import open_llama2c
from .mapping import open_mapping
from .meta import PARAMS, open_meta
from .names import clean
from .nanogpt import open_training
from .pickled_folder import holds_pickles, open_pickled
from .reading import precision, tie
from .safetensors_file import open_safetensors


def load_checkpoint(
    path_or_name: str | os.PathLike[str],
    device: torch.device | str = "cpu",
    dtype: torch.dtype | str | None = None,
) -> Checkpoint:
    """Open a checkpoint: a path, a known name or a hub name ('org/name').

    A path is a folder (Hugging Face's with config.json, Meta's with params.json), a .gguf file, llama2.c's .bin,
    nanoGPT's .pt, or a mapping file (.toml, .json) that names the weights of any other.

    `dtype` None keeps the file's own precision (float32 for GGUF, whose weights are quantized); any other converts.
    On the CPU, weights that need no stacking and no conversion stay views of the memory-mapped file, which must not be
    changed meanwhile. Raises CheckpointError (a ValueError) that names what was expected and what came.
    """
    dtype = precision(dtype)
    check_device(device)
    path = locate(path_or_name if isinstance(path_or_name, str) else Path(path_or_name))
    with naming(path):
        return _open(path, device, dtype)


def _open(path: Path, device: torch.device | str, dtype: torch.dtype | None) -> Checkpoint:
    if path.is_dir():
        return _from_folder(path, device, dtype)
    match path.suffix:
        case ".gguf":
            return open_gguf(path, device, dtype)
        case ".bin":
            return open_llama2c(path, device, dtype)
        case ".pt" | ".pth":
            return open_training(path, device, dtype)
        case ".toml" | ".json":
            return open_mapping(path, device, dtype)
    raise CheckpointError(
        f"{path}: expected a folder with config.json and safetensors, or a .gguf file, llama2.c's .bin, nanoGPT's .pt, "
        "or a mapping file (.toml) that names the weights of any other"
    )


def _from_folder(folder: Path, device: torch.device | str, dtype: torch.dtype | None) -> Checkpoint:
    values = _json(folder, "config.json")
    if values is None and (folder / PARAMS).is_file():
        return open_meta(folder, device, dtype)
    if values is None:
        found = shown(sorted(each.name for each in folder.iterdir()), most=10) or "nothing"
        raise CheckpointError(f"{folder}: expected a config.json in this folder, found {found}")
    family = _family(values, folder)
    with naming(folder / "config.json"):
        config, generation = family.read_config(values, str(folder / "config.json"))
    check_generation(generation, folder / "config.json", config)
    stated = _json(folder, "generation_config.json") or {}
    check_generation(stated, folder / "generation_config.json", config)
    found, mapped = open_pickled(folder) if holds_pickles(folder) else (open_safetensors(folder), True)
    layout = family.layout(config)
    tensors = tie(layout, clean(layout, found), config)
    with naming(folder / "config.json"):
        config = family.settle(config, tensors)
    transformer = assemble(layout, tensors, config, dtype, device, mapped)
    edits = file_in(folder, EDITS)
    found = Checkpoint(config, transformer, str(folder), folder=folder, generation=generation | stated)
    return replace(found, edits_file=edits) if edits.exists() else found


def _family(values: Mapping[str, Any], folder: Path) -> Family:
    kind, architectures = values.get("model_type"), values.get("architectures")
    if kind is None and isinstance(architectures, list):
        for family in FAMILIES.values():
            if any(architecture in family.architectures for architecture in architectures):
                return family
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise CheckpointError(
            f"{folder}: model_type {shown([kind])} (architectures {shown([architectures])}) is not one that is read "
            f"here: {', '.join(FAMILIES)}"
        )
    return FAMILIES[kind]


def _json(folder: Path, name: str) -> dict[str, Any] | None:
    path = file_in(folder, name)
    if not path.exists():
        return None
    check_regular(path)
    data = path.read_bytes()
    check_downloaded(path, data)
    return parse_json(data, path, name)

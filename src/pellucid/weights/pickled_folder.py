"""A folder of Hugging Face's whose weights are pickled: pytorch_model.bin, or its shards with their index."""

import os
from pathlib import Path

from torch import Tensor

from .files import file_in
from .index import check_index, read_index
from .pickle_file import is_mapped, load_pickle
from .safetensors_file import INDEX as SAFE_INDEX
from .safetensors_file import ONE_FILE as SAFE_FILE

ONE_FILE = "pytorch_model.bin"
INDEX = "pytorch_model.bin.index.json"


def holds_pickles(folder: Path) -> bool:
    """Whether the only weights of a folder are pickled."""
    if any(os.path.lexists(folder / name) for name in (SAFE_FILE, SAFE_INDEX)):
        return False
    return any(os.path.lexists(folder / name) for name in (ONE_FILE, INDEX))


def open_pickled(folder: Path) -> tuple[dict[str, Tensor], bool]:
    """The weights of a folder by name, and whether all of them are pages of its files. Raises CheckpointError."""
    if os.path.lexists(folder / ONE_FILE):
        path = file_in(folder, ONE_FILE)
        return load_pickle(path), is_mapped(path)
    index = file_in(folder, INDEX)
    weight_map, files = read_index(index)
    found = {name: load_pickle(path) for name, path in files.items()}
    check_index(index, weight_map, found)
    tensors = {weight: tensor for weights in found.values() for weight, tensor in weights.items()}
    return tensors, all(map(is_mapped, files.values()))

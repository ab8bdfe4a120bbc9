"""Opening weights of any file through a mapping file that names them (mapping_file.py)."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..model.transformer import Transformer
from .checkpoint import Checkpoint, assemble
from .errors import CheckpointError
from .files import shown
from .mapping_file import Mapped, read_mapping
from .names import check_layers, clean, plan
from .npz_file import NpzArray, open_npz
from .outline import outline
from .pickle_file import is_mapped, load_pickle
from .safetensors_file import open_safetensors


def open_mapping(path: Path, device: torch.device | str, dtype: torch.dtype | None) -> Checkpoint:
    """Open the weights that a mapping file names. Raises CheckpointError.

    Everything is checked before a number is read: that the table names each of our weights once, that the files hold
    those and nothing else but what is `ignored`, and every shape.
    """
    said = read_mapping(path)
    found: dict[str, Tensor | NpzArray] = {}
    mapped = True
    for file in said.weights:
        tensors, pages = _open(file)
        if twice := sorted(tensors.keys() & found.keys()):
            raise CheckpointError(f"{file}: another of the files holds {shown(twice)} too. Leave one of them out")
        found.update(tensors)
        mapped = mapped and pages
    plain = clean(said.layout, found)
    check_layers(said.layout, plain, said.config)
    _check_table(path, said, plain, outline(said.config))
    numbers = {name: array.read() if isinstance(array, NpzArray) else array for name, array in plain.items()}
    transformer = assemble(said.layout, numbers, said.config, dtype or said.dtype, device, mapped)
    return Checkpoint(said.config, transformer, str(path), generation=said.generation, tokenizer_file=said.tokenizer)


def _open(file: Path) -> tuple[Mapping[str, Tensor | NpzArray], bool]:
    """What a file holds, and whether its tensors are pages of it."""
    if file.suffix == ".npz":
        return open_npz(file), False
    if file.suffix == ".safetensors" or file.name.endswith(".safetensors.index.json"):
        return open_safetensors(file), True
    if file.suffix in (".pt", ".pth", ".bin"):
        return load_pickle(file), is_mapped(file)
    raise CheckpointError(f"{file}: expected weights as .npz, .safetensors, .safetensors.index.json, .pt, .pth or .bin")


def _check_table(path: Path, said: Mapped, plain: Mapping[str, Tensor | NpzArray], like: Transformer) -> None:
    used = {said.layout.of(ours)[0].ours for ours in like.state_dict()}
    if unused := [entry.ours for entry in said.layout.table if entry.ours not in used]:
        raise CheckpointError(f"{path}: the config makes no weights named {shown(unused, most=20)}")
    counts = Counter(name for names in plan(said.layout, plain, like).values() for name in names)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise CheckpointError(
            f"{path}: names {shown(twice)} more than once. For a tied unembedding, set tied in the config"
        )

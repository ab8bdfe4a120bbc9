"""Meta's consolidated weights: each shard holds a part of every matrix, as the machines that trained it did."""

import re
from pathlib import Path

import torch
from torch import Tensor

from .errors import CheckpointError
from .files import file_in, shown
from .pickle_file import is_mapped, load_pickle
from .reading import equal
from .release import release
from .safetensors_file import open_safetensors

ONE_FILE = "consolidated.safetensors"
INDEX = "consolidated.safetensors.index.json"
_ROWS = re.compile(r"(.*\.)?(wq|wk|wv|w1|w3|output)\.weight")  # split along what the matrix gives
_COLUMNS = re.compile(r".*\.(wo|w2)\.weight")  # split along what it takes


def open_shards(folder: Path, width: int) -> tuple[dict[str, Tensor], bool]:
    """The weights of a folder by name, joined, and whether they are pages of its files. Raises CheckpointError.

    `width` tells how the embedding was split: along the width (LLaMA 1 and 2) or along the vocabulary (3).
    """
    for name in (INDEX, ONE_FILE):
        if file_in(folder, name).exists():
            return dict(open_safetensors(folder / name)), True
    paths = [file_in(folder, each.name) for each in sorted(folder.glob("consolidated.*.pth"))]
    expected = [f"consolidated.{number:02}.pth" for number in range(len(paths))]
    if not paths or [path.name for path in paths] != expected:
        found = shown(sorted(each.name for each in folder.iterdir()), most=10)
        raise CheckpointError(f"{folder}: expected {ONE_FILE}, or consolidated.00.pth and so on without a gap: {found}")
    shards = [load_pickle(path) for path in paths]
    mapped = all(map(is_mapped, paths))
    return (shards[0], mapped) if len(shards) == 1 else (_join(shards, paths, width, mapped), False)


def _join(shards: list[dict[str, Tensor]], paths: list[Path], width: int, mapped: bool) -> dict[str, Tensor]:
    joined = {}
    for shard, path in zip(shards, paths, strict=True):
        if differing := sorted(shard.keys() ^ shards[0].keys()):
            raise CheckpointError(
                f"{path} and {paths[0].name} do not hold parts of the same weights: {shown(differing)} in one of them "
                "only. Download the folder again"
            )
    for name in shards[0]:
        parts = [shard[name] for shard in shards]
        dimension = _dimension(name, parts[0], width)
        fault = _fault(parts, dimension)
        if fault:
            raise CheckpointError(f"{paths[0].parent}: the parts of {shown([name])} do not go together: {fault}")
        joined[name] = parts[0].clone() if dimension is None else torch.cat(parts, dimension)
        for part in parts:
            if mapped:
                release(part)
    return joined


def _dimension(name: str, part: Tensor, width: int) -> int | None:
    """Along which dimension the shards hold parts; None: each holds the whole."""
    if name == "tok_embeddings.weight" and part.ndim == 2:
        return 0 if part.shape[1] == width else 1
    if _ROWS.fullmatch(name):
        return 0
    return 1 if _COLUMNS.fullmatch(name) else None


def _fault(parts: list[Tensor], dimension: int | None) -> str:
    first = parts[0]
    if len({part.dtype for part in parts}) > 1:
        return f"precisions {', '.join(str(part.dtype) for part in parts)}"
    if len({part.shape for part in parts}) > 1 or (dimension is not None and first.ndim != 2):
        return f"shapes {shown([list(part.shape) for part in parts])}"
    if dimension is None and not all(equal(part, first) for part in parts[1:]):
        return "each shard should hold the whole, but they differ"
    return ""

"""GGUF, versions 2 and 3: the header read by ourselves, the weights left in the memory-mapped file.

The format: `GGUF`, the version, how many tensors and how many metadata entries; the entries (key, type, value); for
each tensor its name, dimensions (fastest first), type and offset; then, from the next multiple of the alignment, the
data. All numbers are little-endian. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

A file may be cut short or hostile: no count, length, type or offset in it is used before it was checked against the
bytes that are there, and nothing is set aside for more than those could hold.
"""

import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from .dequantize import FORMATS, dequantize
from .errors import CheckpointError
from .files import check_downloaded, check_regular, shown
from .gguf_header import Cursor

# a type's number is its place in this list; some were given up
# fmt: off
TYPES = [
    "F32", "F16", "Q4_0", "Q4_1", "", "", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64",
    "F64", "IQ1_M", "BF16", "", "", "", "TQ1_0", "TQ2_0", "", "", "", "MXFP4", "NVFP4", "Q1_0",
]
# fmt: on


@dataclass(frozen=True)
class GGUFTensor:
    """One stored tensor.

    `shape` is in torch's order, rows first (the file has it the other way round). `raw` are its bytes, a view of the
    mapped file, one row for each row of weights.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    raw: UInt8[Tensor, "rows bytes"]

    def read(self, dtype: torch.dtype | None = None, out: Tensor | None = None) -> Tensor:
        """The weights as numbers: `dequantize` of this tensor."""
        return dequantize(self.raw, self.type, self.shape, dtype, out)


@dataclass(frozen=True)
class GGUF:
    """What a file holds: its version, its metadata as Python values (arrays as lists), and its tensors by name."""

    path: Path
    version: int
    metadata: Mapping[str, object]
    tensors: Mapping[str, GGUFTensor]


@dataclass(frozen=True)
class Place:
    """A tensor as the header states it, checked: `start` and `end` count bytes from the start of the data."""

    type: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_gguf(path: str | os.PathLike[str]) -> GGUF:
    """Read the header of a GGUF file, version 2 or 3, and map its weights. Raises CheckpointError.

    The mapping is private: writing to `raw` never reaches the file.
    """
    path = Path(path)
    check_regular(path)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        check_downloaded(path, start := file.read(64))
        version = _version(path, start)
        memory = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    cursor = Cursor(path, memory, at=8)
    n_tensors, n_entries = cursor.count(24, "tensors"), cursor.count(13, "metadata entries")
    metadata = cursor.metadata(n_entries)
    alignment = _settings(path, metadata)
    places = _places(path, cursor, n_tensors)
    start = cursor.at + -cursor.at % alignment
    _check_places(path, places, alignment, size - start)
    return GGUF(path, version, metadata, _tensors(torch.frombuffer(memory, dtype=torch.uint8), start, places))


def _version(path: Path, start: bytes) -> int:
    if len(start) < 24 or start[:4] != b"GGUF":
        raise CheckpointError(
            f"{path}: expected a GGUF file, which starts with the letters GGUF, got {start[:4]!r}. "
            "Check what this file is, or download it again"
        )
    version = int.from_bytes(start[4:8], "little")
    if version not in (2, 3):
        swapped = int.from_bytes(start[4:8], "big")
        fault = f"version {swapped} in big-endian numbers" if swapped in (1, 2, 3) else f"version {version}"
        raise CheckpointError(
            f"{path}: expected GGUF version 2 or 3 in little-endian numbers, got {fault}. "
            "Convert the model again with a current llama.cpp"
        )
    return version


def _settings(path: Path, metadata: Mapping[str, object]) -> int:
    """The alignment, once it is known that this one file holds the whole model."""
    parts = metadata.get("split.count", 0)
    if parts not in (0, 1):
        raise CheckpointError(
            f"{path}: this is one of {shown([parts])} parts of a split GGUF. Join them: llama-gguf-split --merge"
        )
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment <= 0 or alignment % 8:
        raise CheckpointError(f"{path}: expected general.alignment to be a multiple of 8, got {shown([alignment])}")
    return alignment


def _places(path: Path, cursor: Cursor, n_tensors: int) -> dict[str, Place]:
    places: dict[str, Place] = {}
    for _ in range(n_tensors):
        name = cursor.string("a tensor's name")
        n_dims = cursor.u32("a tensor's number of dimensions")
        if name in places or n_dims > 4:
            fault = "this name is given twice" if name in places else f"expected at most 4 dimensions, got {n_dims}"
            raise CheckpointError(f"{path}: tensor {shown([name])}: {fault}. Download the file again")
        shape = tuple([cursor.u64("a dimension") for _ in range(n_dims)])[::-1]
        type_id, start = cursor.u32("a tensor's type"), cursor.u64("a tensor's offset")
        type_name = TYPES[type_id] if type_id < len(TYPES) else ""
        form = FORMATS.get(type_name)
        if form is None:
            raise CheckpointError(
                f"{path}: tensor {shown([name])}: expected a type out of {', '.join(FORMATS)}, "
                f"got {type_name or type_id}. Take another quantization of this model"
            )
        if 0 in shape or (shape[-1] if shape else 1) % form.weights:
            raise CheckpointError(
                f"{path}: tensor {shown([name])}: expected dimensions from 1 and rows of a multiple of {form.weights} "
                f"weights ({type_name}), got shape {shape}. Download the file again"
            )
        places[name] = Place(type_name, shape, start, start + math.prod(shape) // form.weights * form.size)
    return places


def _check_places(path: Path, places: Mapping[str, Place], alignment: int, data: int) -> None:
    end = 0
    for name, place in sorted(places.items(), key=lambda item: item[1].start):
        if place.start % alignment:
            fault = f"expected an offset that is a multiple of {alignment}, got {place.start}"
        elif place.start < end:
            fault = f"its data starts at byte {place.start}, inside the tensor before it, which ends at {end}"
        elif place.end > data:
            fault = f"its data needs {place.end} bytes, but the file has {max(0, data)}: it is cut short"
        else:
            end = place.end
            continue
        raise CheckpointError(
            f"{path}: tensor {shown([name])}, {place.type} of shape {place.shape}: {fault}. Download the file again"
        )


def _tensors(memory: Tensor, start: int, places: Mapping[str, Place]) -> dict[str, GGUFTensor]:
    tensors = {}
    for name, place in places.items():
        rows = math.prod(place.shape[:-1])
        raw = memory[start + place.start : start + place.end].view(rows, -1)
        tensors[name] = GGUFTensor(name, place.type, place.shape, raw)
    return tensors

"""The header of a safetensors file: no field of it is believed before it was checked against the file's size.

The format: 8 bytes with the header's length (little-endian), the header as JSON (name -> dtype, shape and the two byte
offsets of the data), then the data without a gap. https://huggingface.co/docs/safetensors
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from .errors import CheckpointError
from .files import check_downloaded, check_regular, parse_json, shown

MAX_HEADER = 100_000_000  # bytes; the safetensors library's own cap

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "F32": torch.float32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
}


@dataclass(frozen=True)
class Entry:
    """One tensor as the header states it: its bytes are `start` to `end` of the data."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Header:
    entries: dict[str, Entry]
    metadata: dict[str, str]


def read_header(path: Path) -> Header:
    """Read and check the header of a safetensors file. Raises CheckpointError."""
    check_regular(path)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(64)
        check_downloaded(path, start)
        if size < 8:
            raise CheckpointError(f"{path}: expected a safetensors file, got {size} bytes. Download the file again")
        length = int.from_bytes(start[:8], "little")
        if length > MAX_HEADER:
            raise CheckpointError(
                f"{path}: not a safetensors file: its first 8 bytes would make a header of {length} bytes "
                f"(at most {MAX_HEADER} are allowed). Check what this file is, or download it again"
            )
        if length > size - 8:
            raise CheckpointError(
                f"{path}: expected a header of {length} bytes, but the whole file has {size}. Download the file again"
            )
        file.seek(8)
        fields = parse_json(file.read(length), path, "the header")
    metadata = _metadata(path, fields.pop("__metadata__", {}))
    entries = {name: _entry(path, name, field) for name, field in fields.items()}
    _check_tiling(path, entries, size - 8 - length)
    return Header(entries, metadata)


def _metadata(path: Path, field: object) -> dict[str, str]:
    if not isinstance(field, dict) or not all(isinstance(value, str) for value in field.values()):
        raise CheckpointError(f"{path}: expected __metadata__ to map strings to strings, got {shown([field])}")
    return field


def _entry(path: Path, name: str, field: object) -> Entry:
    where = f"{path}: tensor {shown([name])}"
    if not isinstance(field, dict) or set(field) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where}: expected dtype, shape and data_offsets in the header, got {shown([field])}")
    dtype, shape, offsets = field["dtype"], field["shape"], field["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CheckpointError(f"{where}: expected a dtype out of {', '.join(DTYPES)}, got {shown([dtype])}")
    if not _are_counts(shape):
        raise CheckpointError(f"{where}: expected a shape of whole numbers from 0, got {shown([shape])}")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{where}: expected two data_offsets, whole numbers from 0, got {shown([offsets])}")
    start, end = offsets
    expected = math.prod(shape) * DTYPES[dtype].itemsize
    if end - start != expected:
        raise CheckpointError(
            f"{where}: {dtype} of shape {shown([shape])} takes {shown([expected])} bytes, "
            f"but its data_offsets {shown([offsets])} span {shown([end - start])}. Download the file again"
        )
    return Entry(DTYPES[dtype], tuple(shape), start, end)


def _are_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_tiling(path: Path, entries: dict[str, Entry], data: int) -> None:
    """The tensors' bytes follow one another from the first byte of the data to its last."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != end:
            fault = "overlaps the tensor before it" if entry.start < end else "leaves a gap before it"
            raise CheckpointError(
                f"{path}: tensor {shown([name])} {fault}: expected its data at byte {end}, "
                f"got {shown([entry.start])}. Download the file again, or write it again with safetensors"
            )
        end = entry.end
    if end != data:
        raise CheckpointError(
            f"{path}: its tensors take {shown([end])} bytes, but {data} bytes of data follow the header. "
            + ("The file is cut short: download it again" if data < end else "Download the file again")
        )

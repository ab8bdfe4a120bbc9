"""NumPy's .npz, a zip of .npy arrays: headers are read and checked first, numbers when they are asked for.

No pickle is read (arrays of objects are refused), and no array takes more memory than its own entry can hold. The
format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

import ast
import math
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .errors import CheckpointError
from .files import check_downloaded, check_regular, shown

DTYPES = ("<f2", "<f4", "<f8", "<i4", "<i8", "|i1", "|u1")
_MOST_HEADER = 10_000  # bytes; NumPy's own cap
_MOST_PACKED = 1032  # bytes out of one: deflate cannot do more
_LENGTHS = {1: "<H", 2: "<I", 3: "<I"}  # how each version of the format writes the length of the header


@dataclass(frozen=True)
class NpzArray:
    """One array of a file: where it is, and what its header says; `dtype` is one of NumPy's names."""

    path: Path
    entry: zipfile.ZipInfo
    dtype: str
    shape: tuple[int, ...]
    by_column: bool
    start: int

    def read(self) -> Tensor:
        """The numbers, in memory of their own. Raises CheckpointError for a type that is not of numbers."""
        where = f"{self.path}: array {shown([self.entry.filename])}"
        if self.dtype not in DTYPES:
            raise CheckpointError(f"{where}: expected numbers of type {', '.join(DTYPES)}, got {shown([self.dtype])}")
        size = math.prod(self.shape) * np.dtype(self.dtype).itemsize
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(self.entry) as file:
                file.read(self.start)
                data = bytearray(file.read(size))
                complete = len(data) == size and not file.read(1)  # the zip's checksum is checked at its end
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError) as error:
            raise CheckpointError(f"{where}: cannot be unpacked ({error}). Download the file again") from error
        if not complete:
            raise CheckpointError(f"{where}: expected {size} bytes of numbers. Download the file again")
        numbers = torch.from_numpy(np.frombuffer(data, dtype=self.dtype)) if size else torch.empty(0)
        if self.by_column:
            return numbers.view(self.shape[::-1]).permute(*range(len(self.shape))[::-1])
        return numbers.view(self.shape)


def open_npz(path: Path) -> dict[str, NpzArray]:
    """The arrays of a file by name, headers only. Raises CheckpointError."""
    check_regular(path)
    with path.open("rb") as file:
        check_downloaded(path, file.read(64))
    arrays: dict[str, NpzArray] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                name = _name(path, entry)
                if name in arrays:
                    raise CheckpointError(f"{path}: two arrays have one name, {shown([name])}. Write the file again")
                arrays[name] = _header(path, archive, entry)
    except CheckpointError:
        raise
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        raise CheckpointError(f"{path}: not a sound .npz file ({error}). Download it again") from error
    return arrays


def _name(path: Path, entry: zipfile.ZipInfo) -> str:
    """The array's name; refuses what NumPy does not write, and sizes that cannot be."""
    where = f"{path}: {shown([entry.filename])}"
    if not entry.filename.endswith(".npy") or entry.flag_bits & 1:
        raise CheckpointError(f"{where}: expected arrays (.npy) that are not encrypted. Save them with numpy.savez")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise CheckpointError(f"{where}: packed in a way NumPy does not use. Save it with numpy.savez_compressed")
    if entry.compress_size > path.stat().st_size or entry.file_size > _MOST_PACKED * entry.compress_size:
        raise CheckpointError(
            f"{where}: claims {entry.file_size} bytes from {entry.compress_size} of the file's {path.stat().st_size}. "
            "Download the file again"
        )
    return entry.filename.removesuffix(".npy")


def _header(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NpzArray:
    where = f"{path}: array {shown([entry.filename])}"
    with archive.open(entry) as file:
        start = file.read(8)
        layout = _LENGTHS.get(start[6]) if len(start) == 8 and start[:6] == b"\x93NUMPY" else None
        if layout is None:
            raise CheckpointError(f"{where}: not in NumPy's format of version 1 to 3. Download the file again")
        (length,) = struct.unpack(layout, file.read(struct.calcsize(layout)))
        if length > _MOST_HEADER:
            raise CheckpointError(f"{where}: a header of {length} bytes, at most {_MOST_HEADER} are allowed")
        text = file.read(length)
    begin = 8 + struct.calcsize(layout) + length
    dtype, by_column, shape = _fields(where, text)
    size = entry.file_size - begin
    if dtype in DTYPES and math.prod(shape) * np.dtype(dtype).itemsize != size:
        raise CheckpointError(
            f"{where}: {dtype} of shape {shown([shape])} takes {math.prod(shape) * np.dtype(dtype).itemsize} bytes, "
            f"but {size} follow the header. Download the file again"
        )
    return NpzArray(path, entry, dtype, shape, by_column, begin)


def _fields(where: str, text: bytes) -> tuple[str, bool, tuple[int, ...]]:
    """descr, fortran_order and shape; a record's descr (a list) is kept as text, which is no type of numbers."""
    try:
        fields = ast.literal_eval(text.decode("utf-8"))
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise CheckpointError(f"{where}: its header is not a Python dictionary. Download the file again") from error
    if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
        raise CheckpointError(f"{where}: expected descr, fortran_order and shape in the header, got {shown([fields])}")
    shape = fields["shape"]
    sound = isinstance(shape, tuple) and len(shape) <= 32 and all(type(size) is int and size >= 0 for size in shape)
    if not sound or not isinstance(fields["fortran_order"], bool):
        raise CheckpointError(f"{where}: expected a shape of whole numbers from 0, got {shown([shape])}")
    return str(fields["descr"]), fields["fortran_order"], shape

"""Writing a GGUF file with the gguf package: entries, then the weights, one at a time."""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .errors import CheckpointError
from .files import shown

if TYPE_CHECKING:
    import numpy as np

TYPES = ("F32", "F16", "BF16", "Q8_0")
BLOCK = 32  # weights that share a scale in Q8_0
_FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "BF16": 32}
_SINGLE = ("position_embd.weight", "token_types.weight")  # tables that llama.cpp wants in F32


def write_file(
    path: Path, architecture: str, entries: Mapping[str, Any], tensors: Mapping[str, Tensor], type: str
) -> None:
    """Write a file with matrices of a type out of TYPES. Raises CheckpointError without the gguf package."""
    gguf = library()
    kinds = kinds_of(entries)
    stored = {name: stored_type(name, tensor, type) for name, tensor in tensors.items()}
    writer = gguf.GGUFWriter(path, architecture)
    try:
        writer.add_file_type(_FILE_TYPES[type])
        if type == "Q8_0":
            writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        for key, value in entries.items():
            kind, inner = kinds[key]
            writer.add_key_value(
                key, value, gguf.GGUFValueType[kind], None if inner is None else gguf.GGUFValueType[inner]
            )
        for name, tensor in tensors.items():
            chosen = gguf.GGMLQuantizationType[stored[name]]
            weights, size = gguf.GGML_QUANT_SIZES[chosen]
            nbytes, single = tensor.numel() // weights * size, numbers(torch.empty(0)).dtype
            writer.add_tensor_info(name, tuple(tensor.shape), single, nbytes, chosen)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, tensor in tensors.items():
            chosen = gguf.GGMLQuantizationType[stored[name]]
            writer.write_tensor_data(gguf.quants.quantize(numbers(tensor), chosen))
    finally:
        writer.close()


def library() -> ModuleType:
    """The gguf package, which only writing needs."""
    try:
        import gguf
    except ImportError as error:
        raise CheckpointError("writing GGUF needs the gguf package: pip install gguf") from error
    return gguf


def stored_type(name: str, tensor: Tensor, type: str) -> str:
    """F32 for vectors and tables of positions; F16 for a matrix whose rows do not divide into blocks."""
    if tensor.ndim < 2 or name in _SINGLE:
        return "F32"
    return "F16" if type == "Q8_0" and tensor.shape[-1] % BLOCK else type


def numbers(tensor: Tensor) -> "np.ndarray":
    """A tensor's numbers in single precision, row after row."""
    return tensor.detach().to("cpu", torch.float32).contiguous().numpy()


def kinds_of(entries: Mapping[str, Any]) -> dict[str, tuple[str, str | None]]:
    """The value type of each entry, and for a list that of what is in it. Raises CheckpointError for other values."""
    return {key: ("ARRAY", _list_kind(key, value)) if isinstance(value, list | tuple) else (_kind(key, value), None)
            for key, value in entries.items()}  # fmt: skip


def _list_kind(key: str, values: list[Any] | tuple[Any, ...]) -> str:
    kinds = {"INT32" if type(value) is int and abs(value) < 2**31 else _kind(key, value) for value in values}
    if len(kinds) != 1:
        raise CheckpointError(f"metadata {key}: a list must hold values of one kind, got {shown(values)}")
    return kinds.pop()


def _kind(key: str, value: object) -> str:
    match value:
        case bool():
            return "BOOL"
        case str():
            return "STRING"
        case float():
            return "FLOAT32"
        case int() if 0 <= value < 2**32:
            return "UINT32"
        case int() if -(2**63) <= value < 2**63:
            return "INT64"
    raise CheckpointError(
        f"metadata {key}: expected a text, a number, true or false, or a list of one of them, got {shown([value])}"
    )

"""Safetensors: open one file or a folder of shards without reading the weights, and save.

An opened weight is a view of the memory-mapped file: nothing is copied until it is used, and the mapping is private, so
that writing to a weight changes this process's copy of it and never the file.
"""

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .errors import CheckpointError
from .files import file_in, shown, sync_folder
from .index import check_index, read_index
from .safetensors_header import DTYPES, Header, read_header
from .sharing import sharing

ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class Safetensors(Mapping[str, Tensor]):
    """The weights of one or more safetensors files, by name; each is mapped from its file when it is asked for.

    `files` are the files they come from and `metadata` the text the files carry (for a name kept once for several tied
    weights, for example).
    """

    def __init__(self, headers: Mapping[Path, Header]):
        self.files = tuple(headers)
        self.metadata = {key: text for header in headers.values() for key, text in header.metadata.items()}
        self._opened: dict[str, Any] = {}
        for path, header in headers.items():
            try:
                opened = safe_open(path, framework="pt", device="cpu")
            except SafetensorError as error:
                raise CheckpointError(f"{path}: not a sound safetensors file ({error}). Download it again") from error
            self._opened.update(dict.fromkeys(header.entries, opened))

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._opened[name].get_tensor(name)
        # a header of odd length leaves the data where kernels may not read numbers of this size
        return tensor.clone() if tensor.data_ptr() % tensor.element_size() else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._opened)

    def __len__(self) -> int:
        return len(self._opened)


def open_safetensors(path: str | os.PathLike[str]) -> Safetensors:
    """Open a `.safetensors` file, an index, or a folder with `model.safetensors` or else an index and its shards.

    Everything the files say is checked here, before a weight can be asked for: every header, that each shard is there,
    and that index and shards name the same weights. Raises CheckpointError.
    """
    path = Path(path)
    if path.is_dir():
        for name in (ONE_FILE, INDEX):
            if os.path.lexists(path / name):
                path = file_in(path, name)
                break
        else:
            found = shown(sorted(each.name for each in path.iterdir()), most=10) or "nothing"
            raise CheckpointError(f"{path}: expected {ONE_FILE} or {INDEX} in this folder, found {found}")
    if path.name.endswith(".index.json"):
        return Safetensors(_headers_of_shards(path))
    return Safetensors({path: read_header(path)})


def _headers_of_shards(index: Path) -> dict[Path, Header]:
    weight_map, files = read_index(index)
    headers = {name: read_header(path) for name, path in files.items()}
    check_index(index, weight_map, {name: header.entries for name, header in headers.items()})
    return {files[name]: header for name, header in headers.items()}


def save_safetensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Save tensors under their names; whoever reads `path` meanwhile sees the old file or the whole new one.

    `metadata` is text kept in the header beside `{"format": "pt"}`. Tensors on other devices or not contiguous are
    copied one at a time. Raises CheckpointError for what the format cannot hold, and for tensors that share memory
    (tied weights, which would be stored twice and come back untied): give one name for each, and name the other in
    `metadata`.
    """
    path = Path(path)
    metadata = {"format": "pt", **(metadata or {})}
    tensors = {name: tensor.detach() for name, tensor in tensors.items()}
    _check_writable(path, tensors, metadata)
    # largest numbers first keeps all of them aligned
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with aside.open("xb") as file:
            file.write(_header_bytes({name: tensors[name] for name in names}, metadata))
            for name in names:
                numbers = tensors[name].cpu().contiguous().as_strided((tensors[name].numel(),), (1,))
                numbers.view(torch.uint8).numpy().tofile(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _header_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    names_of = {dtype: name for name, dtype in DTYPES.items()}
    fields: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        fields[name] = {"dtype": names_of[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _check_writable(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    if not path.parent.is_dir():
        raise CheckpointError(f"{path}: its folder does not exist. Make it first")
    if not all(isinstance(text, str) for pair in metadata.items() for text in pair):
        raise CheckpointError(f"{path}: expected metadata of strings, got {shown([dict(metadata)])}")
    for name, tensor in tensors.items():
        if name == "__metadata__":
            raise CheckpointError(f"{path}: '__metadata__' is a name the format keeps for itself. Rename the tensor")
        if tensor.layout != torch.strided or tensor.is_meta or tensor.dtype not in DTYPES.values():
            raise CheckpointError(
                f"{path}: tensor {shown([name])}: expected a dense tensor with data, of type {', '.join(DTYPES)}, "
                f"got {tensor.dtype}, {tensor.layout}, on {tensor.device}"
            )
    shared = sharing(tensors)
    if shared:
        raise CheckpointError(
            f"{path}: {shown(shared)} share memory, and would be stored twice and come back untied. "
            "Give only one of them (tied weights are tied again by the model's config)"
        )

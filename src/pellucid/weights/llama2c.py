"""llama2.c's .bin files: a header of seven numbers, then float32 in a fixed order (version 0, and version 1, 'ak42').

Neighbouring features are rotated together, with base 10,000, and norms have an epsilon of 1e-5, as llama2.c's own run
has them.
"""

import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..model.config import Config, RMSNorm, SwiGLU
from ..model.rotary import Rotary
from .checkpoint import Checkpoint, assemble, naming
from .errors import CheckpointError
from .files import check_downloaded, check_regular, file_in
from .meta import LAYOUT

MAGIC = 0x616B3432  # "ak42"
_HEADER = 256  # bytes of version 1's
_PICKLES = (b"PK\x03\x04", b"\x80\x02")

# What stands where, with its shape: each line is one tensor, or, with {} in its name, one for each layer in turn.
VERSION_0 = (
    ("tok_embeddings.weight", "V D"),
    ("layers.{}.attention_norm.weight", "D"),
    ("layers.{}.attention.wq.weight", "HK D"),
    ("layers.{}.attention.wk.weight", "GK D"),
    ("layers.{}.attention.wv.weight", "GK D"),
    ("layers.{}.attention.wo.weight", "D HK"),
    ("layers.{}.ffn_norm.weight", "D"),
    ("layers.{}.feed_forward.w1.weight", "F D"),
    ("layers.{}.feed_forward.w2.weight", "D F"),
    ("layers.{}.feed_forward.w3.weight", "F D"),
    ("norm.weight", "D"),
    ("cosines", "T half"),
    ("sines", "T half"),
    ("output.weight", "V D"),
)
VERSION_1 = (
    ("layers.{}.attention_norm.weight", "D"),
    ("layers.{}.ffn_norm.weight", "D"),
    ("norm.weight", "D"),
    ("tok_embeddings.weight", "V D"),
    ("layers.{}.attention.wq.weight", "HK D"),
    ("layers.{}.attention.wk.weight", "GK D"),
    ("layers.{}.attention.wv.weight", "GK D"),
    ("layers.{}.attention.wo.weight", "D HK"),
    ("layers.{}.feed_forward.w1.weight", "F D"),
    ("layers.{}.feed_forward.w2.weight", "D F"),
    ("layers.{}.feed_forward.w3.weight", "F D"),
    ("output.weight", "V D"),
)
_TABLES = ("cosines", "sines")  # of the rotation, which follow from the config


@dataclass(frozen=True)
class Header:
    """The seven numbers, whether the embedding is also the unembedding, the order, and where the numbers start."""

    d_model: int
    d_ff: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    vocab_size: int
    context_length: int
    tied: bool
    order: tuple[tuple[str, str], ...]
    start: int

    def config(self) -> Config:
        """The Config; raises ValueError where the numbers do not fit together."""
        return Config(
            vocab_size=self.vocab_size,
            context_length=self.context_length,
            n_layers=self.n_layers,
            d_model=self.d_model,
            n_heads=self.n_heads,
            n_kv_heads=self.n_kv_heads,
            d_ff=self.d_ff,
            positions=Rotary(),
            norm=RMSNorm(1e-5),
            activation=SwiGLU(),
            qkv_bias=False,
            out_bias=False,
            ffn_bias=False,
            tied=self.tied,
        )


def open_llama2c(path: Path, device: torch.device | str, dtype: torch.dtype | None) -> Checkpoint:
    """Open a .bin of version 0 or 1; its weights stay views of the mapped file where nothing has to change.

    A text ends before the token that starts the next one (1) and at Llama's own end (2). Raises CheckpointError for
    int8 files (version 2), and where the file is not as long as its header says.
    """
    header, size = _read_header(path)
    with naming(path):
        config = header.config()
    places = _places(header, config)
    needed = sum(count * math.prod(shape) for _, shape, count in places)
    if header.start + 4 * needed != size:
        raise CheckpointError(
            f"{path}: its header ({header.n_layers} layers, width {header.d_model}, vocabulary {header.vocab_size}) "
            f"makes {header.start + 4 * needed} bytes, but the file has {size}. Download it again"
        )
    numbers = torch.from_file(str(path), shared=False, size=size // 4, dtype=torch.float32)[header.start // 4 :]
    transformer = assemble(LAYOUT, _tensors(numbers, places), config, dtype, device)
    ends = {"bos_token_id": 1, "eos_token_id": [1, 2]}
    return Checkpoint(config, transformer, str(path), generation=ends, tokenizer_file=_tokenizer(path, config))


def _read_header(path: Path) -> tuple[Header, int]:
    check_regular(path)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(_HEADER)
    check_downloaded(path, data)
    if data.startswith(_PICKLES):
        raise CheckpointError(f"{path}: expected llama2.c's format, got a torch.save file. Open its folder instead")
    if len(data) < 28:
        raise CheckpointError(f"{path}: expected a header of 28 bytes, but the file has {size}. Download it again")
    if int.from_bytes(data[:4], "little") != MAGIC:
        d, f, layers, heads, groups, vocab, context = struct.unpack_from("<7i", data)
        header = Header(d, f, layers, heads, groups, abs(vocab), context, vocab > 0, VERSION_0, 28)
    else:
        header = _new_header(path, data)
    if wrong := [name for name, value in vars(header).items() if type(value) is int and value < 1]:
        raise CheckpointError(
            f"{path}: not a llama2.c file: its header's {', '.join(wrong)} must be at least 1, "
            f"got {', '.join(str(vars(header)[name]) for name in wrong)}. Check what this file is"
        )
    return header, size


def _new_header(path: Path, data: bytes) -> Header:
    if len(data) < _HEADER:
        raise CheckpointError(f"{path}: expected a header of {_HEADER} bytes, got {len(data)}. Download it again")
    version, *numbers, shared = struct.unpack_from("<8iB", data, 4)
    if version != 1:
        kind = "int8 weights" if version == 2 else "not known"
        raise CheckpointError(f"{path}: llama2.c's version {version} ({kind}) is not read here, only 0 and 1 (float32)")
    if shared > 1:
        raise CheckpointError(f"{path}: the header's flag for a shared classifier must be 0 or 1, got {shared}")
    return Header(*numbers, tied=bool(shared), order=VERSION_1, start=_HEADER)


def _places(header: Header, config: Config) -> list[tuple[str, tuple[int, ...], int]]:
    """Name, shape and how many times, in the order of the file."""
    sizes = {
        "V": config.vocab_size,
        "D": config.d_model,
        "F": config.d_ff,
        "T": config.context_length,
        "HK": config.n_heads * config.d_head,
        "GK": config.n_kv_heads * config.d_head,
        "half": config.d_head // 2,
    }
    return [
        (name, tuple(sizes[letter] for letter in shape.split()), config.n_layers if "{}" in name else 1)
        for name, shape in header.order
        if not (config.tied and name == "output.weight")
    ]


def _tensors(numbers: Tensor, places: list[tuple[str, tuple[int, ...], int]]) -> dict[str, Tensor]:
    tensors, start = {}, 0
    for name, shape, count in places:
        for index in range(count):
            end = start + math.prod(shape)
            if name not in _TABLES:
                tensors[name.format(index)] = numbers[start:end].view(shape)
            start = end
    return tensors


def _tokenizer(path: Path, config: Config) -> Path | None:
    """The vocabulary beside the file: the one of its size, or else the usual name."""
    for name in (f"tok{config.vocab_size}.bin", "tokenizer.bin", f"tok{config.vocab_size}.model", "tokenizer.model"):
        found = file_in(path.parent, name)
        if found.is_file():
            return found
    return None

"""Tensors that many processes hold in parts, in files that any number of them reads: torch's distributed checkpoint,
laid out as safetensors, of which each process writes one."""

import warnings
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from ..weights.errors import CheckpointError

FILES = "shard-*.safetensors"


def write(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors, each process its parts. Raises what the first process that failed has raised."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    try:
        save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:
        raise _first(error) from error


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of whole tensors, by name. Raises CheckpointError for a damaged file."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    try:
        found = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder}: a damaged checkpoint ({error}): take another") from error
    return {name: tuple(stored.size) for name, stored in found.items()}  # pyright: ignore[reportAttributeAccessIssue]


def read(folder: Path, tensors: Mapping[str, Tensor], parts: bool) -> None:
    """Fill tensors of these names and shapes: whole ones, or each process its `parts` of them, all together.

    Raises CheckpointError.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is", UserWarning)  # one process reads by itself
            load(dict(tensors), storage_reader=reader, no_dist=not parts)
    except CheckpointException as error:
        raise CheckpointError(f"{folder}: cannot be read ({_first(error)}): take another") from error


def _first(error: BaseException) -> BaseException:
    failures = error.failures  # pyright: ignore[reportAttributeAccessIssue]
    return failures[min(failures)][0]

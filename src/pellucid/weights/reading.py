"""From a file's tensors to a transformer's state dict: views of the mapped file where nothing has to change."""

import torch
from torch import Tensor

from ..model.config import Config
from ..model.transformer import Transformer
from .errors import CheckpointError
from .names import TOKENS, UNEMBED, Layout, plan, rows
from .release import release

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}


def precision(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """A dtype from its name; None stays None. Raises CheckpointError for one that a model cannot run in."""
    named = PRECISIONS.get(dtype.removeprefix("torch.")) if isinstance(dtype, str) else dtype
    if dtype is not None and named not in PRECISIONS.values():
        raise CheckpointError(f"dtype must be one of {', '.join(PRECISIONS)} or None (the file's own), got {dtype!r}")
    return named


def tie(layout: Layout, tensors: dict[str, Tensor], config: Config) -> dict[str, Tensor]:
    """Where the config ties the embedding and the unembedding, one tensor of them, whichever side the file holds.

    Raises CheckpointError if the file holds both and they differ. Without tying the tensors stay as they are.
    """
    (embedding,), (head,) = layout.of(TOKENS)[1], layout.of(UNEMBED)[1]
    if not config.tied or head not in tensors:
        return tensors
    others = {name: tensor for name, tensor in tensors.items() if name != head}
    if embedding in others and not _equal(others[embedding], tensors[head]):
        raise CheckpointError(
            f"the config ties {embedding} and {head}, but the file's two copies differ: "
            "set tie_word_embeddings to false in config.json if they are meant to"
        )
    return {embedding: tensors[head], **others}


def read(
    layout: Layout,
    tensors: dict[str, Tensor],
    like: Transformer,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """The state dict of `like` from a file's tensors (under their plain names).

    `dtype` None keeps the file's precision. A tensor that needs no stacking and no conversion is a view of the file's,
    transposed where the layout is; stacked ones are copied one layer at a time. Raises CheckpointError where names,
    shapes or precisions do not fit.
    """
    made = plan(layout, tensors, like)
    wanted = like.state_dict()
    own = _own_precision({name: tensors[name] for names in made.values() for name in names})
    if own is None and dtype is None:
        raise CheckpointError("the file mixes precisions: name the one to run in with dtype=")
    dtype = dtype or own
    state = {}
    for ours, names in made.items():
        entry, _ = layout.of(ours)
        parts = [tensors[name].T if entry.transposed else tensors[name] for name in names]
        if len(parts) == 1:
            state[ours] = parts[0].to(device=device, dtype=dtype)
        else:
            fused = torch.empty(wanted[ours].shape, dtype=dtype, device=device)
            for room, part in zip(fused.split(rows(entry, fused, like.config)), parts, strict=True):
                room.copy_(part)
            state[ours] = fused
        for part in parts:
            if state[ours].data_ptr() != part.data_ptr():
                release(part)
    return state


def _own_precision(tensors: dict[str, Tensor]) -> torch.dtype | None:
    """The one precision of all tensors, or None where there are several."""
    for name, tensor in tensors.items():
        if tensor.dtype not in PRECISIONS.values():
            raise CheckpointError(f"{name} is stored as {tensor.dtype}, expected one of {', '.join(PRECISIONS)}")
    found = {tensor.dtype for tensor in tensors.values()}
    return found.pop() if len(found) == 1 else None


def _equal(left: Tensor, right: Tensor) -> bool:
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    same = torch.equal(left, right)
    release(right)
    return same

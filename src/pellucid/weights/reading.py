"""From a file's tensors to a transformer's state dict: views of the mapped file where nothing has to change."""

import torch
from torch import Tensor

from ..model.config import Config
from ..model.transformer import Transformer
from .errors import CheckpointError
from .names import TOKENS, UNEMBED, Entry, Layout, plan, rotated, rows, stacked
from .release import release
from .rotation import copy_half_split

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
    if embedding in others and not equal(tensors[head], others[embedding]):
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
    mapped: bool = True,
) -> dict[str, Tensor]:
    """The state dict of `like` from a file's tensors (under their plain names).

    `mapped`: the tensors are pages of a file, which may be given back once their numbers are copied elsewhere.

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
        if len(parts) == 1 and not entry.interleaved:
            state[ours] = parts[0].to(device=device, dtype=dtype)
        else:
            fused = torch.empty(wanted[ours].shape, dtype=dtype, device=device)
            _fill(fused, parts, entry, like.config)
            state[ours] = fused
        for part in parts:
            if mapped and state[ours].data_ptr() != part.data_ptr():
                release(part)
    return state


def _fill(fused: Tensor, parts: list[Tensor], entry: Entry, config: Config) -> None:
    """Copy a file's tensors, one or several, into the one of ours that they make."""
    if not entry.interleaved:
        for room, part in zip(fused.split(rows(entry, fused, config)), parts, strict=True):
            room.copy_(part)
        return
    if len(parts) == 1:
        parts = list(parts[0].split(stacked(config)))
    queries, keys, values = fused.split(stacked(config))
    copy_half_split(queries, parts[0], config.n_heads, rotated(config))
    copy_half_split(keys, parts[1], config.n_kv_heads, rotated(config))
    values.copy_(parts[2])


def _own_precision(tensors: dict[str, Tensor]) -> torch.dtype | None:
    """The one precision of all tensors, or None where there are several."""
    for name, tensor in tensors.items():
        if tensor.dtype not in PRECISIONS.values():
            raise CheckpointError(f"{name} is stored as {tensor.dtype}, expected one of {', '.join(PRECISIONS)}")
    found = {tensor.dtype for tensor in tensors.values()}
    return found.pop() if len(found) == 1 else None


def equal(dropped: Tensor, kept: Tensor) -> bool:
    """Whether two tensors of a file hold the same numbers in the same precision, so that one of them can go.

    The pages of `dropped` are given back, those of `kept` are not: memory that is no file's would come back empty.
    """
    if dropped.shape != kept.shape or dropped.dtype != kept.dtype:
        return False
    if dropped.data_ptr() == kept.data_ptr():
        return dropped.stride() == kept.stride()
    same = torch.equal(dropped, kept)
    if same:
        release(dropped)
    return same

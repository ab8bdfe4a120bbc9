"""From a file's tensors to a transformer's state dict: views of the mapped file where nothing has to change."""

import torch
from torch import Tensor

from ..model.config import Config
from ..model.transformer import Transformer
from .errors import CheckpointError
from .files import shown
from .names import TOKENS, UNEMBED, Layout, part_of, plan, rows
from .release import release

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}


def precision(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """A dtype from its name; None stays None. Raises CheckpointError for one that a model cannot run in."""
    named = PRECISIONS.get(dtype.removeprefix("torch.")) if isinstance(dtype, str) else dtype
    if dtype is not None and named not in PRECISIONS.values():
        raise CheckpointError(
            f"dtype must be one of {', '.join(PRECISIONS)} or None (the file's own), got {shown([dtype])}"
        )
    return named


def tie(layout: Layout, tensors: dict[str, Tensor], config: Config) -> dict[str, Tensor]:
    """One tensor for each that the file may hold twice, whichever of them it holds.

    These are the layout's `copies`, and, where the config ties them, the embedding and the unembedding. Raises
    CheckpointError if the file holds two that differ.
    """
    for first, *others in layout.copies:
        for other in others:
            tensors = _without(tensors, first, other, f"{first} and {other} are one weight", "Download the file again")
    if not config.tied or not layout.has(UNEMBED):
        return tensors
    (embedding,), (head,) = layout.of(TOKENS)[1], layout.of(UNEMBED)[1]
    remedy = "set tie_word_embeddings to false in config.json if they are meant to"
    return _without(tensors, embedding, head, f"the config ties {embedding} and {head}", remedy)


def _without(tensors: dict[str, Tensor], kept: str, copy: str, why: str, remedy: str) -> dict[str, Tensor]:
    if copy not in tensors:
        return tensors
    others = {name: tensor for name, tensor in tensors.items() if name != copy}
    if kept in others and not equal(tensors[copy], others[kept]):
        raise CheckpointError(f"{why}, but the file's two copies differ: {remedy}")
    return {kept: tensors[copy], **others}


def drop_copy(tensors: dict[str, Tensor], embedding: str, head: str) -> bool:
    """Whether a file that has no setting for it ties them: `head` is absent, or the same numbers, and is taken out."""
    if head in tensors and embedding in tensors and equal(tensors[head], tensors[embedding]):
        del tensors[head]
    return head not in tensors


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
        parts = [entry.seen(tensors[name]) for name in names]
        counts = rows(entry, wanted[ours], like.config)
        orders = entry.orders(counts, part_of(like.config, ours))
        if len(parts) == 1 and orders[0] is None:
            state[ours] = parts[0].to(device=device, dtype=dtype)
        else:
            fused = torch.empty(wanted[ours].shape, dtype=dtype, device=device)
            for room, part, order in zip(fused.split(counts), parts, orders, strict=True):
                room.copy_(part if order is None else part[order.argsort()])
            state[ours] = fused
        for part in parts:
            if mapped and state[ours].data_ptr() != part.data_ptr():
                release(part)
    return state


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

"""What training does to all sublayers alike: compute them twice to keep less, compile them, look for a fault."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..model.attention import Sublayer
from ..model.transformer import Transformer
from .batch import Batch, Objective


def sublayers(transformer: Transformer) -> list[Sublayer]:
    """Every attention and feed-forward layer, an encoder's too."""
    return [module for module in transformer.modules() if isinstance(module, Sublayer)]


@contextmanager
def recomputing(transformer: Transformer, wanted: bool = True) -> Iterator[None]:
    """Inside, the backward pass computes each sublayer again from the state it read, and only states are kept.

    Losses and gradients are the same to the last bit, dropout included; a third more is computed (Chen et al. 2016).
    """
    changed = sublayers(transformer) if wanted else []
    for sublayer in changed:
        sublayer.forward = partial(checkpoint, sublayer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for sublayer in changed:
            del sublayer.forward


def compile_sublayers(transformer: Transformer, backend: str = "inductor") -> None:
    """Compile each sublayer in its place; layers of one shape share the work. What they compute is the same."""
    for sublayer in sublayers(transformer):
        sublayer.compile(backend=backend)


def first_fault(transformer: Transformer, objective: Objective, batch: Batch) -> str:
    """Where the first number that is not finite stands, in words: in a weight, in a layer's output, or in a gradient.

    Runs the batch once more, without gradients; those of the step that failed must still be there.
    """
    for name, weight in transformer.named_parameters():
        if not _finite(weight):
            return f"the weight {name}"
    found: list[str] = []

    def watch(name: str, module: nn.Module, inputs: Any, output: object) -> None:
        if isinstance(output, Tensor) and not _finite(output):
            found.append(name)

    hooks = [module.register_forward_hook(partial(watch, name)) for name, module in transformer.named_modules() if name]
    try:
        with torch.no_grad():
            loss, _ = objective(transformer, batch.to(transformer.W_U.device))
    finally:
        for hook in hooks:
            hook.remove()
    if found:
        return f"the output of {found[0]}"
    if not _finite(loss):
        return "the loss, while every layer's output is finite"
    # Gradients flow from the last layer to the first: the last that is not finite came first.
    wrong = [name for name, weight in transformer.named_parameters() if not _finite(weight.grad)]
    return f"the gradient of {wrong[-1]}" if wrong else "nothing that is not finite when the batch is run again"


def _finite(tensor: Tensor | None) -> bool:
    return tensor is None or bool(torch.isfinite(tensor).all())

"""Watches: measures of a model while it learns, each a function of the transformer that gives numbers by name.

Places are named as sites are: "embed", then "0.attention", "0.ffn" and so on, and last "final". The model's own
gradients must be those of the step, as they are when a run takes its watches.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.optim import Optimizer

from ..model.transformer import Transformer
from .optimizers import Together


def gradients(transformer: Transformer) -> dict[str, float]:
    """The length of the gradient of each sublayer's weights, sqrt(sum of squares), after clipping."""
    return {place: _length(w.grad for w in weights) for place, weights in _by_place(transformer).items()}


def stream(transformer: Transformer, probe: Int[Tensor, "B T"]) -> dict[str, float]:
    """The stream's root mean square before each layer and after the last: sqrt(mean of x^2) over a fixed text."""
    return {name: float(x.double().square().mean().sqrt()) for name, x in _states(transformer, probe)}


def rank(transformer: Transformer, probe: Int[Tensor, "B T"]) -> dict[str, float]:
    """The effective rank of the stream of a fixed text: how many directions its vectors spread over."""
    return {name: effective_rank(x.flatten(0, 1) - x.flatten(0, 1).mean(0)) for name, x in _states(transformer, probe)}


def weight_rank(transformer: Transformer) -> dict[str, float]:
    """The effective rank of each matrix inside the blocks."""
    matrices = {name: w.detach() for name, w in transformer.named_parameters() if "blocks." in name and w.ndim == 2}
    return {name.replace("blocks.", "").removesuffix(".weight"): effective_rank(w) for name, w in matrices.items()}


def effective_rank(matrix: Float[Tensor, "rows columns"]) -> float:
    """exp(-sum of p ln p) with p = s / sum of s, s the singular values (Roy & Vetterli 2007).

    1 for one direction, n for n orthogonal ones of one length, NaN for a matrix of zeros.
    """
    s = torch.linalg.svdvals(matrix.double())
    return float(torch.special.entr(s / s.sum()).sum().exp())


class Updates:
    """The length of a step's update over that of the weights before it, by sublayer; about 1e-3 in a healthy run.

    The weights are copied just before the optimiser writes to them, in steps for which `due` says so. A step that was
    skipped has no update, and gives nothing.
    """

    def __init__(self, transformer: Transformer, optimizer: Together, due: Callable[[], bool]):
        self._due, self._before = due, dict[str, list[Tensor]]()
        self._transformer = transformer
        self._hook = optimizer.parts[0].register_step_pre_hook(self._copy)

    def __call__(self, transformer: Transformer) -> dict[str, float]:
        before, self._before = self._before, {}
        found = {}
        for place, weights in _by_place(transformer).items():
            if place in before:
                moved = _length(new.detach() - old for new, old in zip(weights, before[place], strict=True))
                size = _length(before[place])
                found[place] = moved / size if size else float("nan")
        return found

    def close(self) -> None:
        """Let go of the optimiser."""
        self._hook.remove()

    def _copy(self, optimizer: Optimizer, arguments: object, options: object) -> None:
        if self._due():
            places = _by_place(self._transformer)
            self._before = {place: [w.detach().clone() for w in weights] for place, weights in places.items()}


def _by_place(transformer: Transformer) -> dict[str, list[Tensor]]:
    """The weights that are trained, by the sublayer that they are of, in the order of the data."""
    found: dict[str, list[Tensor]] = {"embed": []}
    for name, weight in transformer.named_parameters():
        if weight.requires_grad:
            found.setdefault(_place(name), []).append(weight)
    return {place: weights for place, weights in found.items() if weights}


def _place(name: str) -> str:
    """The sublayer that a weight is of: "3.attention" of "blocks.3.attention.qkv.weight"; "final" after the blocks."""
    parts = name.split(".")
    side = ""
    if parts[0] == "encoder":
        side, parts = "encoder.", parts[1:]
    if parts[0] == "blocks":
        return f"{side}{parts[1]}.{parts[2]}"
    return f"{side}{'embed' if parts[0] == 'embed' else 'final'}"


@torch.no_grad()
def _states(transformer: Transformer, probe: Int[Tensor, "B T"]) -> Iterator[tuple[str, Float[Tensor, "B T D"]]]:
    """The states between the layers, dropout off."""
    if transformer.encoder is not None:
        raise ValueError("a stream is watched of models without an encoder; this one needs a source text")
    kept: dict[str, Tensor] = {}

    def keep(value: Tensor, place: object, keys: object, name: str) -> Tensor:
        kept[name] = value
        return value

    names = [f"{layer}.stream" for layer in range(transformer.config.n_layers + 1)]
    training = transformer.training
    transformer.eval()
    transformer.hidden(probe.to(transformer.W_U.device), looks={name: partial(keep, name=name) for name in names})
    transformer.train(training)
    return iter(kept.items())


def _length(tensors: Iterable[Tensor | None]) -> float:
    """sqrt(sum of squares) of all numbers in some tensors."""
    return sum(float(tensor.detach().double().square().sum()) for tensor in tensors if tensor is not None) ** 0.5

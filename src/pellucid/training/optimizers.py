"""Optimisers: which parameters decay, AdamW, and Muon for the matrices inside the blocks."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from ..model.checks import at_least, one_of, positive


@dataclass(frozen=True)
class Recipe:
    """Numbers of an optimiser. `name` is "adamw" or "muon"; the learning rate is the schedule's, step by step."""

    name: str = "adamw"
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    momentum: float = 0.95

    def __post_init__(self) -> None:
        one_of("optimizer.name", self.name, ("adamw", "muon"))
        for name in ("beta1", "beta2", "momentum"):
            if not 0.0 <= vars(self)[name] < 1.0:
                raise ValueError(f"optimizer.{name} must lie in [0, 1), got {vars(self)[name]}")
        positive("optimizer.eps", self.eps)
        at_least("optimizer.weight_decay", self.weight_decay, 0.0)


class Together:
    """Several optimisers as one: each holds other parameters, all are given the same learning rate."""

    def __init__(self, *parts: Optimizer):
        self.parts = parts

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all parts."""
        return [group for part in self.parts for group in part.param_groups]

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)


def optimizer_of(model: nn.Module, recipe: Recipe = Recipe()) -> Together:
    """The optimiser of a model's trainable parameters. Raises ValueError if there are none."""
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    if not named:
        raise ValueError("there is nothing to train: no parameter requires a gradient")
    hidden = [weight for name, weight in named if recipe.name == "muon" and _is_hidden(name, weight)]
    inside = {id(weight) for weight in hidden}
    others = decay_groups((weight for _, weight in named if id(weight) not in inside), recipe.weight_decay)
    # A tensor on a device that has no fused kernel takes the default one.
    fused = all(weight.device.type in ("cpu", "cuda", "mps", "xpu") for _, weight in named) or None
    adamw = AdamW(others, lr=0.0, betas=(recipe.beta1, recipe.beta2), eps=recipe.eps, fused=fused)
    if not hidden:
        return Together(adamw)
    # Scaled so that an update is as large as AdamW's, which lets both share one learning rate (Liu et al. 2025).
    decay, rate = recipe.weight_decay, "match_rms_adamw"
    muon = Muon(hidden, lr=0.0, weight_decay=decay, momentum=recipe.momentum, adjust_lr_fn=rate)
    return Together(adamw, muon)


def decay_groups(weights: Iterable[Tensor], weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups: matrices and tables (two dimensions or more) decay, gains and biases do not."""
    weights = list(weights)
    groups = [
        {"params": [weight for weight in weights if weight.ndim >= 2], "weight_decay": weight_decay},
        {"params": [weight for weight in weights if weight.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def state_tensors(optimizer: Together, model: nn.Module) -> dict[str, Tensor]:
    """All that an optimiser remembers, as tensors under "parameter name|what it is"."""
    return {f"{name}|{key}": value for name, state in _states(optimizer, model) for key, value in state.items()}


def load_state_tensors(optimizer: Together, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """The inverse of `state_tensors`. Raises ValueError for a parameter that there is not."""
    weights = dict(model.named_parameters())
    owners = {id(weight): part for part in optimizer.parts for group in part.param_groups for weight in group["params"]}
    for key, value in tensors.items():
        name, _, what = key.partition("|")
        weight = weights.get(name)
        owner = None if weight is None else owners.get(id(weight))
        if weight is None or owner is None or (value.ndim and value.shape != weight.shape):
            raise ValueError(
                f"the optimiser's {key!r} of shape {tuple(value.shape)} belongs to no parameter of this run"
            )
        # What counts steps stays where the optimiser keeps it: beside the weights if it is fused.
        owner.state[weight][what] = value.to(weight.device) if value.ndim or weight.is_cuda else value


def _states(optimizer: Together, model: nn.Module) -> Iterator[tuple[str, dict[str, Tensor]]]:
    for name, weight in model.named_parameters():
        for part in optimizer.parts:
            if weight in part.state:
                yield name, part.state[weight]


def _is_hidden(name: str, weight: Tensor) -> bool:
    return weight.ndim == 2 and "blocks." in name

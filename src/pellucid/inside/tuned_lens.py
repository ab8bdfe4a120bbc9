"""The tuned lens: for each depth an affine map, trained to say there what the model says at the end."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..model.transformer import Transformer
from .lens import Translator, depths, divergence, log_probabilities
from .lens_file import read_lens, write_lens
from .trace import trace


@dataclass(frozen=True, eq=False, repr=False)
class TunedLens:
    """norm_f(x_l + A_l x_l + b_l) W_U (Belrose et al. 2023); with A and b at 0 the logit lens.

    `A` and `b` have an entry for the state before each block; the last state is left as it is.
    """

    A: Float[Tensor, "L D D"]
    b: Float[Tensor, "L D"]

    @property
    def name(self) -> str:
        """What tables call it."""
        return "tuned lens"

    def check(self, layers: int, width: int) -> None:
        """Raise ValueError where the lens is not for a model of this many layers and this width."""
        check_shape(self.name, tuple(self.A.shape[:2]), layers, width)

    def __call__(self, depth: int, state: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        """What the state at a depth is read as."""
        if depth == len(self.A):
            return state
        return affine(state, self.A[depth], self.b[depth])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the lens into a safetensors file."""
        write_lens(path, self.name, {"A": self.A, "b": self.b})

    @classmethod
    def load(cls, path: str | os.PathLike[str], transformer: Transformer) -> Self:
        """Read a lens for a model. Raises ValueError for another file, or one of a model of another shape."""
        layers, width = len(transformer.blocks), transformer.config.d_model
        return cls(**read_lens(path, "tuned lens", {"A": (layers, width, width), "b": (layers, width)}))

    def __repr__(self) -> str:
        return f"TunedLens({self.A.shape[0]} layers, width {self.A.shape[1]})"


def check_shape(name: str, got: tuple[int, ...], layers: int, width: int) -> None:
    """Raise ValueError where a fitted lens is of a model of another shape."""
    if got != (layers, width):
        raise ValueError(f"this model has {layers} layers of width {width}, the {name} is for {got[0]} of {got[1]}")


def tune_lens(
    transformer: Transformer,
    batches: Iterable[Tensor],
    steps: int | None = None,
    rate: float = 1e-3,
    progress: Callable[[int, float], object] | None = None,
) -> TunedLens:
    """Train a lens on KL(model || lens), in nats, averaged over the tokens of one batch of ids a step.

    Adam, from A = b = 0, its rate falling to 0 over `steps` (None: as many as there are batches). The depths are
    trained by themselves; the model's weights are not touched. `progress` is told the step and the mean divergence over
    depths before it. Raises ValueError for a model that needs more than ids or makes no logits, and for no batches.
    """
    _check(transformer)
    if steps is not None and (not isinstance(steps, int) or steps < 1):
        raise ValueError(f"steps must be a whole number of at least 1, got {steps!r}")
    batches = list(batches) if steps is None else batches
    steps = len(list(batches)) if steps is None else steps
    layers, width = len(transformer.blocks), transformer.config.d_model
    kind = {"device": transformer.W_U.device, "dtype": torch.promote_types(transformer.W_U.dtype, torch.float32)}
    lens, done = TunedLens(torch.zeros(layers, width, width, **kind), torch.zeros(layers, width, **kind)), 0
    weights = [(A.requires_grad_(), b.requires_grad_()) for A, b in zip(lens.A, lens.b, strict=True)]  # views
    optimizer = torch.optim.Adam([weight for pair in weights for weight in pair], lr=rate)
    for ids in batches:
        if done == steps:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - done / steps)
        found = [loss.detach() for loss in _learned(transformer, ids, weights)]
        optimizer.step()
        done += 1
        if progress is not None:
            progress(done, float(torch.stack(found).mean()))
    if done == 0 or done < steps:
        raise ValueError(f"a lens is tuned on one batch of ids a step: {steps} steps, got {done} batches")
    return TunedLens(lens.A.detach(), lens.b.detach())


def _learned(
    transformer: Transformer, ids: Int[Tensor, "B T"], weights: Sequence[tuple[Tensor, Tensor]]
) -> Iterator[Tensor]:
    """The mean divergence at every depth but the last, the gradients of that depth's weights left in them."""
    found = trace(transformer, ids.to(transformer.W_U.device))
    here, final = found.present(), log_probabilities(found["logits"])
    for index, (A, b) in zip(depths(transformer), weights, strict=False):
        with torch.enable_grad():
            logits = transformer.logits(affine(found.states[index], A, b), here)
            loss = divergence(final, log_probabilities(logits)).mean()
            A.grad, b.grad = torch.autograd.grad(loss, [A, b])  # and none of the model's weights
        yield loss


def lens_divergence(
    transformer: Transformer, batches: Iterable[Tensor], tuned: Translator | None = None
) -> Float[Tensor, "depths"]:
    """KL(model || lens) in nats at every depth, averaged over the tokens of some ids; 0 at the last. Float64."""
    _check(transformer)
    depth_states, tokens = depths(transformer), 0
    sums = torch.zeros(len(depth_states), dtype=torch.float64)
    for ids in batches:
        found = trace(transformer, ids.to(transformer.W_U.device))
        here, final = found.present(), log_probabilities(found["logits"])
        for depth, index in enumerate(depth_states):
            state = found.states[index]
            with torch.no_grad():
                logits = transformer.logits(state if tuned is None else tuned(depth, state), here)
                sums[depth] += divergence(final, log_probabilities(logits)).double().sum().cpu()
        tokens += ids.numel()
    if tokens == 0:
        raise ValueError("there are no ids to take a lens of")
    return sums / tokens


def affine(state: Float[Tensor, "*rows D"], A: Float[Tensor, "D D"], b: Float[Tensor, "D"]) -> Float[Tensor, "*rows D"]:
    """x + A x + b, in the state's precision."""
    return state + state @ A.to(state).T + b.to(state)


def _check(transformer: Transformer) -> None:
    if transformer.encoder is not None or transformer.unembed is None:
        raise ValueError("this model has an encoder or no head: a lens needs logits that are made of ids alone")

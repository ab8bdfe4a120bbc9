"""Random weights to start from."""

import torch
from torch import nn

from .config import Config, FanIn

WRITERS = ("attention.out.weight", "cross.out.weight", "ffn.down.weight")


@torch.no_grad()
def initialise(transformer: nn.Module, config: Config, generator: torch.Generator | None = None) -> None:
    """Draw matrices as the config's `init` says; biases 0, gains 1. On torch's meta device nothing is drawn."""
    for name, weight in transformer.named_parameters():
        if weight.ndim == 2:
            weight.normal_(0.0, _std(name, weight, config), generator=generator)
        elif name.endswith("bias"):
            weight.zero_()
        else:
            weight.fill_(1.0)


def _std(name: str, weight: torch.Tensor, config: Config) -> float:
    """GPT-2's start (Radford et al. 2019) narrows what writes to the stream; PaLM's goes by the width that is read."""
    if isinstance(config.init, FanIn):
        return 1.0 if name.startswith("embed.") else weight.shape[1] ** -0.5
    return config.init.std / (2 * config.n_layers) ** 0.5 if name.endswith(WRITERS) else config.init.std

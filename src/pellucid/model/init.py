"""Random weights to start from."""

import torch
from torch import nn

from .config import Config


@torch.no_grad()
def initialise(transformer: nn.Module, config: Config, generator: torch.Generator | None = None) -> None:
    """GPT-2's start (Radford et al. 2019): matrices N(0, std), those that write to the stream N(0, std / sqrt(2 L)),
    biases 0, gains 1. On torch's meta device nothing is drawn.
    """
    writers = ("attention.out.weight", "ffn.down.weight")
    for name, weight in transformer.named_parameters():
        if weight.ndim == 2:
            std = config.init.std / (2 * config.n_layers) ** 0.5 if name.endswith(writers) else config.init.std
            weight.normal_(0.0, std, generator=generator)
        elif name.endswith("bias"):
            weight.zero_()
        else:
            weight.fill_(1.0)

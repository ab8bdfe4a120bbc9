"""What reads the final stream: the unembedding, and BERT's heads (Devlin et al. 2019)."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from .activation import activate
from .config import Config, MaskedLanguage
from .flow import Pass
from .layers import Linear, Norm, normalise


class Unembedding(nn.Module):
    """x W_U^T + b: one logit for each token. Tied, it holds no matrix and is lent the token embedding's."""

    def __init__(self, config: Config):
        super().__init__()
        bias = isinstance(config.head, MaskedLanguage) or (config.head is not None and config.head.bias)
        self.weight = None if config.tied else nn.Parameter(torch.empty(config.vocab_size, config.d_model))
        self.bias = nn.Parameter(torch.empty(config.vocab_size)) if bias else None

    def forward(self, x: Float[Tensor, "*rows D"], words: Float[Tensor, "V D"]) -> Float[Tensor, "*rows V"]:
        return F.linear(x, words if self.weight is None else self.weight, self.bias)


class PredictionHead(nn.Module):
    """norm(act(x W + b)): what BERT's masked-language head makes of the stream before it is unembedded."""

    def __init__(self, config: Config, prefix: str = ""):
        super().__init__()
        self.name, self.activation = f"{prefix}head", config.activation
        self.dense = Linear(config.d_model, config.d_model, bias=True)
        self.norm = Norm(config.norm, config.d_model)

    def forward(self, x: Float[Tensor, "B T D"], here: Pass) -> Float[Tensor, "B T D"]:
        z = here.look(f"{self.name}.dense", self.dense(x))
        active = here.look(f"{self.name}.active", activate(self.activation, z))
        return here.look(f"{self.name}.normed", normalise(self.norm, active, here, f"{self.name}.scale"))


def first_token(x: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B D"]:
    """The vector of each row's first token, wherever padding puts it."""
    if real is None:
        return x[:, 0]
    return x[torch.arange(x.shape[0], device=x.device), real.int().argmax(1)]

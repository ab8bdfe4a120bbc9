"""The small layers a sublayer is made of: a matrix, a norm."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .config import LayerNorm, RMSNorm
from .config import Norm as NormRecord
from .flow import Pass


class Linear(nn.Module):
    """x W^T + b. The one place where a matrix meets the stream; `weight` is [out, in] in any memory order."""

    def __init__(self, d_in: int, d_out: int, bias: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_out, d_in))
        self.bias = nn.Parameter(torch.empty(d_out)) if bias else None

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows F"]:
        return F.linear(x, self.weight, self.bias)


class Norm(nn.Module):
    """LayerNorm or RMSNorm over the features of each position."""

    def __init__(self, record: NormRecord, width: int):
        super().__init__()
        self.record = record
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if isinstance(record, LayerNorm) and record.bias else None

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        if isinstance(self.record, LayerNorm):
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.record.eps)
        return self.with_scale(x, self.scale(x))

    def scale(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T"]:
        """1 / sqrt(var + eps), or 1 / sqrt(mean of squares + eps), in at least fp32."""
        centred = self._centred(x)
        return torch.rsqrt(centred.square().mean(-1) + self.record.eps)

    def with_scale(self, x: Float[Tensor, "B T D"], scale: Float[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """The norm with a given scale instead of its own; LLaMA casts back before the gain is applied, so does this."""
        normed = (self._centred(x) * scale[..., None]).to(x.dtype) * self.weight
        return normed if self.bias is None else normed + self.bias

    def _centred(self, x: Tensor) -> Tensor:
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        return x if isinstance(self.record, RMSNorm) else x - x.mean(-1, keepdim=True)


def normalise(norm: Norm, x: Float[Tensor, "B T D"], here: Pass, scale_site: str) -> Float[Tensor, "B T D"]:
    """A norm whose scale can be looked at under `scale_site`."""
    if here.watches(scale_site):
        return norm.with_scale(x, here.look(scale_site, norm.scale(x)))
    return norm(x)

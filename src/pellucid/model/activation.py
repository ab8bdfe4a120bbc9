"""The activations of a feed-forward network, element by element."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .config import Activation, Gelu, GeluTanh, Relu, Silu, SwiGLU

# The tanh form of GELU, z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3))), is z sigmoid(LINEAR z + CUBIC z^3).
LINEAR = math.sqrt(8 / math.pi)
CUBIC = 0.044715 * LINEAR


def activate(activation: Activation, z: Float[Tensor, "*rows F"]) -> Float[Tensor, "*rows F"]:
    """The activation's values, element by element."""
    match activation:
        case Gelu():
            return F.gelu(z)
        case GeluTanh():
            return gelu_tanh(z)
        case Relu():
            return F.relu(z)
        case Silu() | SwiGLU():
            return F.silu(z)


def gelu_tanh(z: Float[Tensor, "*rows F"]) -> Float[Tensor, "*rows F"]:
    """GELU in its tanh form (Hendrycks and Gimpel, 2016); on a CPU, about twice as quick as torch's, both ways.

    torch's own kernel takes a tanh of each element, forward and once more backward; a sigmoid costs half of it, and
    kept it need not be taken again. Elsewhere, and in half precision, torch's kernel stays.
    """
    if z.device.type != "cpu" or z.dtype not in (torch.float32, torch.float64):
        return F.gelu(z, approximate="tanh")
    if z.requires_grad and torch.is_grad_enabled():
        return _GeluTanh.apply(z)[0]  # pyright: ignore[reportOptionalSubscript]
    return _gate(z).mul_(z)


def _gate(z: Tensor) -> Tensor:
    return (z * z).mul_(CUBIC).add_(LINEAR).mul_(z).sigmoid_()


class _GeluTanh(torch.autograd.Function):
    """z times its gate, and the gate, kept for the backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor) -> tuple[Tensor, Tensor]:
        gate = _gate(z)
        return z * gate, gate

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)  # no zeros in place of the gate's gradient
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Tensor | None:
        z, gate = ctx.saved_tensors
        grad = grads[0]
        if grad is None:
            return None
        if torch.is_grad_enabled():  # whoever differentiates once more needs the gate as a function of z
            gate = torch.sigmoid(z * (LINEAR + CUBIC * z * z))
            return grad * gate * (1 + z * (LINEAR + 3 * CUBIC * z * z) * (1 - gate))
        slope = (z * z).mul_(3 * CUBIC).add_(LINEAR).mul_(z)  # of what the sigmoid is taken of, times z
        return slope.addcmul_(slope, gate, value=-1).add_(1).mul_(gate).mul_(grad)

"""The tanh form of GELU beside torch's own: values, slopes, and slopes of slopes."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck

from pellucid.model.activation import gelu_tanh

FAR = torch.tensor([[0.0, -0.0, 1e-30, 3.0, -3.0, 40.0, -40.0, 1e4, -1e4]])


def grid(dtype=torch.float64):
    return torch.linspace(-9, 9, 721, dtype=dtype)[None]


def value_and_slope(form, values):
    z = values.clone().requires_grad_(True)
    out = form(z)
    return out.detach(), torch.autograd.grad(out.sum(), z)[0]


def torchs(z):
    return F.gelu(z, approximate="tanh")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_values_and_slopes_are_torchs_to_rounding(dtype):
    eps = torch.finfo(dtype).eps
    for values in (grid(dtype), FAR.to(dtype)):
        (value, slope), (wanted, slope_wanted) = value_and_slope(gelu_tanh, values), value_and_slope(torchs, values)
        assert ((value - wanted).abs() <= 4 * eps * wanted.abs().clamp(min=1)).all()
        # Where the gate is all but one, one less the gate is rounded, and multiplied by up to 60.
        assert ((slope - slope_wanted).abs() <= 64 * eps).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_torchs_own_kernel(dtype):
    for mine, wanted in zip(value_and_slope(gelu_tanh, grid(dtype)), value_and_slope(torchs, grid(dtype)), strict=True):
        assert torch.equal(mine, wanted)


def test_a_value_is_the_same_bit_for_bit_with_and_without_a_gradient():
    z = grid(torch.float32)
    assert torch.equal(gelu_tanh(z), gelu_tanh(z.clone().requires_grad_(True)))


def test_slopes_and_slopes_of_slopes_are_differences_of_values():
    z = torch.linspace(-4, 4, 17, dtype=torch.float64)[None].requires_grad_(True)
    assert gradcheck(gelu_tanh, (z,))
    assert gradgradcheck(gelu_tanh, (z,))


def test_slopes_of_many_rows_at_once():
    z, weights = grid(), torch.eye(721, dtype=torch.float64)[:5]
    together = torch.func.vmap(lambda w: torch.func.grad(lambda x: (gelu_tanh(x) * w).sum())(z))(weights)
    one_by_one = [torch.func.grad(lambda x, w=w: (gelu_tanh(x) * w).sum())(z) for w in weights]
    assert torch.equal(together, torch.stack(one_by_one))


def test_what_comes_in_is_left_alone():
    z = grid()
    gelu_tanh(z)
    assert torch.equal(z, grid())

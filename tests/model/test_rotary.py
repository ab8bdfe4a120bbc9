"""Rotation and activations, by the public faults that they are known for."""

import pytest
import torch

from pellucid.model.activation import activate
from pellucid.model.config import Gelu, GeluTanh
from pellucid.model.rotary import Llama3, Rotary, frequencies, rotate, table


def test_arch_1_tables_are_exact_whatever_the_models_precision():
    positions = torch.tensor([[256, 257]])
    cos, _ = table(Rotary(), 64, positions, 258, torch.bfloat16)
    assert cos.dtype == torch.bfloat16
    assert cos[0, :, 0, 0].tolist() == pytest.approx([-0.039791, 0.819306], abs=4e-3)


def test_arch_2_pairs_are_the_two_halves():
    x = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64).view(1, 1, 1, 4)
    cos, sin = table(Rotary(), 4, torch.tensor([[1]]), 2, torch.float64)
    assert rotate(x, cos, sin).flatten().tolist() == pytest.approx([-1.984111, 1.959901, 2.462378, 4.019800], abs=1e-6)
    permuted = rotate(x[..., [0, 2, 1, 3]], cos, sin).flatten()
    interleaved = [-1.142640, 1.922076, 2.959851, 4.029799]
    assert permuted[[0, 2, 1, 3]].tolist() == pytest.approx(interleaved, abs=1e-6)


def test_arch_3_llama_3_scaling_has_three_bands():
    angles, magnitude = frequencies(Rotary(500000.0, 1.0, Llama3(32.0, 1.0, 4.0, 8192)), 64, 10)
    plain, _ = frequencies(Rotary(500000.0), 64, 10)
    assert magnitude == 1.0
    assert angles[:15] == plain[:15]
    expected = [3.21144599e-3, 1.29054793e-3, 4.29556797e-4, 9.70828780e-5, 1.94616382e-5]
    assert angles[14:19] == pytest.approx(expected, rel=1e-6)
    assert angles[18:] == pytest.approx([angle / 32 for angle in plain[18:]], rel=1e-12)


def test_arch_4_the_two_forms_of_gelu():
    x = torch.tensor([1.0, 3.0, -1.0], dtype=torch.float64)
    assert activate(GeluTanh(), x).tolist() == pytest.approx([0.8411920, 2.9963626, -0.1588080], abs=1e-6)
    assert activate(Gelu(), x).tolist() == pytest.approx([0.8413447, 2.9959503, -0.1586553], abs=1e-6)
    grid = torch.linspace(-6, 6, 100001, dtype=torch.float64)
    gap = (activate(Gelu(), grid) - activate(GeluTanh(), grid)).abs()
    assert float(gap.max()) == pytest.approx(4.73e-4, abs=1e-6)
    assert float(grid[gap.argmax()].abs()) == pytest.approx(2.70, abs=0.02)

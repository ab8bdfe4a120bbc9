"""The feed-forward layer: its activation, its gate, its dead units, and that no position sees another."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ..inside.edits import add
from ..inside.trace import Trace
from ..model.activation import activate
from ..model.config import Activation, Gelu, GeluTanh, Relu
from ..views import Table
from .drawing import Bars, Curves
from .found import Found
from .small import site

GRID = tuple(number / 4 for number in range(-16, 17, 2))
GATED = (
    ("LLaMA 1, 7B", 4096, 11008),
    ("LLaMA 1, 13B", 5120, 13824),
    ("LLaMA 1, 30B", 6656, 17920),
    ("LLaMA 1, 65B", 8192, 22016),
    ("Mistral 7B", 4096, 14336),
    ("PaLM 8B", 4096, 16384),
)
BIASES = (0.0, -1.0, -2.0, -3.0, -4.0)


def gelu(grid: Sequence[float] = GRID) -> Found:
    """GELU x Phi(x), its tanh form and ReLU: values and gradients on a grid, and how far the tanh form is off at most.

    The gradients: Phi(x) + x phi(x) for GELU; for ReLU 0 below zero, 1 above, and 0 at zero.
    """
    z = torch.as_tensor(grid, dtype=torch.float64)
    ways = {"ReLU": Relu(), "GELU": Gelu(), "GELU, tanh": GeluTanh()}
    both = {name: _with_slope(way, z) for name, way in ways.items()}
    values = {name: value.tolist() for name, (value, _) in both.items()}
    slopes = {f"d {name}": gradient.tolist() for name, (_, gradient) in both.items()}
    rows = tuple(zip(z.tolist(), *values.values(), *slopes.values(), strict=True))
    off, where = tanh_off()
    note = f"The tanh form is off by at most {off:.2e}, at x = +-{where:.3f}."
    table = Table("activations and their gradients", ("x", *values, *slopes), rows, note)
    series = tuple((name, tuple(value)) for name, value in {**values, **slopes}.items() if "tanh" not in name)
    return Found((table,), Curves("GELU and ReLU", tuple(map(float, grid)), series, ("x", "value or gradient")))


def tanh_off(end: float = 6.0, step: float = 1e-4) -> tuple[float, float]:
    """The largest difference of GELU's tanh form from GELU, and the positive x where it is."""
    z = torch.arange(0, end, step, dtype=torch.float64)
    off = (activate(Gelu(), z) - activate(GeluTanh(), z)).abs()
    return float(off.max()), float(z[off.argmax()])


def _with_slope(activation: Activation, z: Float[Tensor, "N"]) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"]]:
    z = z.detach().clone().requires_grad_()
    with torch.enable_grad():
        value = activate(activation, z)
        (gradient,) = torch.autograd.grad(value.sum(), z)
    return value.detach(), gradient


def dead_units(biases: Sequence[float] = BIASES, units: int = 400, inputs: int = 500, seed: int = 0) -> Found:
    """Units max(0, w.x + b) that no input makes positive get no gradient from any; under GELU every unit gets some.

    Inputs and weights are random, so that w.x has variance 1; every unit has the same bias.
    """
    draws, rows = torch.Generator().manual_seed(seed), []
    x = torch.randn(inputs, 32, generator=draws, dtype=torch.float64)
    weights = torch.randn(32, units, generator=draws, dtype=torch.float64) / math.sqrt(32)
    for bias in biases:
        z = (x @ weights + bias).flatten()
        dead = [(_with_slope(way, z)[1].view(inputs, units) == 0).all(0).sum().item() for way in (Relu(), Gelu())]
        rows.append((bias, float((z > 0).double().mean()), dead[0], dead[1]))
    names = ("bias", "share of values above 0", "dead under ReLU", "dead under GELU")
    table = Table(f"{units} units, {inputs} inputs", names, tuple(rows))
    return Found((table,), Bars(table, "dead under ReLU"))


@torch.no_grad()
def dead_units_on(trace: Trace) -> Found:
    """How dense a model's own activity is, layer by layer: what its activation reads, on this text."""
    gated, rows = trace.transformer.config.gated, []
    real = torch.ones_like(trace.ids, dtype=torch.bool) if trace.mask is None else trace.mask.bool()
    for layer in range(trace.transformer.config.n_layers):
        z = trace[site(trace, f"{layer}.ffn.{'gate' if gated else 'up'}")][real]
        neurons = trace[site(trace, f"{layer}.ffn.neurons")][real].double().abs()
        strong = neurons > 0.1 * neurons.max()
        never = int((z <= 0).all(0).sum())
        rows.append((layer, float((z > 0).double().mean()), never, z.shape[1], float(strong.double().mean())))
    names = ("layer", "share above 0", "never above 0", "of units", "above a tenth of the largest")
    table = Table(
        "what the activation reads" + (" (the gate)" if gated else ""), names, tuple(rows), "On this text only."
    )
    return Found((table,), Bars(table, "share above 0"))


def gated() -> Found:
    """Three matrices instead of two: with d_ff near 8/3 d they hold what two hold at 4 d, 8 d^2."""
    rows = tuple((name, d, f, f / d, 3 * d * f, 8 * d * d, 3 * f / (8 * d)) for name, d, f in GATED)
    names = ("model", "d", "d_ff", "d_ff / d", "3 d d_ff", "8 d^2", "ratio")
    table = Table(
        "gated feed-forward layers", names, rows, "8/3 = 2.667: there a gated layer is as large as a plain one."
    )
    return Found((table,), Bars(table, "ratio"))


@torch.no_grad()
def position_wise_on(trace: Trace) -> Found:
    """What one position's input does to the updates elsewhere: nothing in the feed-forward layer, much in attention.

    The first token's input of either sublayer is moved; shown is the largest change of the update at any other token.
    """
    rows = []
    columns = trace.columns(0)
    if len(columns) < 2:
        raise ValueError("this needs a text of at least two tokens")
    for layer in range(trace.transformer.config.n_layers):
        cells = []
        for part in ("ffn", "attention"):
            name = site(trace, f"{layer}.{part}")
            moved = trace.edit(add(f"{name}.input", 1.0, position=0))
            change = (moved[f"{name}.update"] - trace[f"{name}.update"])[0, columns].double().abs().amax(-1)
            cells += [float(change[0]), float(change[1:].max())]
        rows.append((layer, *cells))
    names = ("layer", "feed-forward: there", "elsewhere", "attention: there", "elsewhere ")
    return Found((Table("the first token's input moved by 1 in every feature", names, tuple(rows)),))

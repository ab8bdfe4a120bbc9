"""Depth: what shortcuts do to gradients, where the norm stands, and how the stream grows."""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..inside.reading import state_sites
from ..inside.trace import Trace, trace
from ..model.config import BlockForm, FanIn, PostNorm, PreNorm
from ..model.transformer import Transformer
from ..training.batch import Batch
from ..training.objectives import next_token
from ..views import Table
from .drawing import Curves
from .found import Found
from .small import random_ids, random_model

SIZES = (3, 3, 3, 3, 3, 1)
INPUT = (1.0, 0.0, -1.0)
# Raschka, Build a Large Language Model (From Scratch), 2024, section 4.4.
PUBLISHED = {
    False: (0.000202, 0.000120, 0.000715, 0.001399, 0.005050),
    True: (0.2217, 0.2069, 0.3290, 0.2666, 1.3259),
}
FORMS: dict[str, BlockForm] = {"pre-norm": PreNorm(), "post-norm": PostNorm()}


def layer_gradients(shortcut: bool, seed: int = 123) -> list[float]:
    """The mean absolute gradient of each layer's weights in the five-layer GELU network, in fp32.

    Layers nn.Linear as torch starts them after `manual_seed(seed)`, tanh GELU after every one, and where shapes agree
    x + GELU(layer(x)); squared error between the output for [1, 0, -1] and 0.
    """
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        layers = [nn.Linear(wide, to) for wide, to in pairwise(SIZES)]
        x = torch.tensor([INPUT])
        for layer in layers:
            y = F.gelu(layer(x), approximate="tanh")
            x = x + y if shortcut and x.shape == y.shape else y
        weights = [layer.weight for layer in layers]
        gradients = torch.autograd.grad(F.mse_loss(x, torch.zeros(1, 1)), weights)
    return [float(gradient.abs().mean()) for gradient in gradients]


def shortcuts(seed: int = 123) -> Found:
    """The derivative of x + F(x) is 1 + F'(x): gradients by layer without and with shortcuts, beside a published table.

    Two factors are easily taken for one another: of the last layer over the first, and of with over without.
    """
    without, with_them = layer_gradients(False, seed), layer_gradients(True, seed)
    columns = [[1000 * value for value in each] for each in (without, PUBLISHED[False], with_them, PUBLISHED[True])]
    rows = tuple(zip(range(1, 6), *columns, strict=True))
    names = ("layer", "without", "published", "with shortcuts", "published ")
    factors = (
        ("last over first layer, without", without[-1] / without[0]),
        ("last over first layer, with", with_them[-1] / with_them[0]),
        ("with over without, first layer", with_them[0] / without[0]),
    )
    note = "" if seed == 123 else f"Published are those of seed 123; these are of seed {seed}."
    found = Table("mean absolute gradient of a layer's weights, in thousandths", names, rows, note)
    curves = (("without", tuple(without)), ("with shortcuts", tuple(with_them)))
    figure = Curves("gradients by layer", (1.0, 2.0, 3.0, 4.0, 5.0), curves, ("layer", "gradient"), True)
    return Found((found, Table("factors", ("of what", "factor"), factors)), figure)


def _untrained(form: BlockForm, layers: int, seed: int) -> Transformer:
    """A model at its start in which every update is about as large as what it reads."""
    changes = {"n_layers": layers, "block": form, "init": FanIn(), "tied": False}
    return random_model(seed, **changes)


def gradient_norms(form: BlockForm, layers: int = 12, seeds: Sequence[int] = (0, 1, 2)) -> list[float]:
    """The norm of the loss's gradient for each block's W_down at the start, the mean over seeds; next-token loss."""
    totals = torch.zeros(layers, dtype=torch.float64)
    for seed in seeds:
        model = _untrained(form, layers, seed).requires_grad_()
        ids = random_ids(4, 25, seed)
        with torch.enable_grad():
            loss, count = next_token(model, Batch(ids[:, :-1], ids[:, 1:]))
            (loss / count).backward()
        named = dict(model.named_parameters())
        for layer in range(layers):
            gradient = named[f"blocks.{layer}.ffn.down.weight"].grad
            assert isinstance(gradient, Tensor), "every block has a part in the loss"
            totals[layer] += gradient.norm()
    return (totals / len(seeds)).tolist()


def pre_and_post_norm(layers: int = 12, depths: Sequence[int] = (2, 6, 12, 24)) -> Found:
    """Gradients at the start: near the output they are large in post-norm, however deep; in pre-norm smaller the
    deeper the model is (in the limit as 1 / sqrt(L)), since a final norm divides by the stream's size.

    Why post-norm models need a warm-up (Xiong et al. 2020). Width 64, matrices N(0, 1 / d_in), mean of three seeds.
    """
    found = {name: tuple(gradient_norms(form, layers)) for name, form in FORMS.items()}
    rows = tuple(zip(range(layers), *found.values(), strict=True))
    table = Table(f"norm of the gradient of W_down before any step, {layers} blocks", ("block", *found), rows)
    last = [(depth, *(gradient_norms(form, depth)[-1] for form in FORMS.values())) for depth in depths]
    deep = tuple((depth, pre, pre * depth**0.5, post, post / pre) for depth, pre, post in last)
    names = ("blocks", "pre-norm", "x sqrt(L)", "post-norm", "post / pre")
    series = tuple(found.items())
    x = tuple(map(float, range(layers)))
    figure = Curves("gradients at the start", x, series, ("block", "norm of gradient"), True)
    return Found((table, Table("of the last block, by depth", names, deep)), figure)


def rms_by_depth(trace: Trace) -> list[float]:
    """The root mean square of the stream's components in each state, over all tokens."""
    real = torch.ones_like(trace.ids, dtype=torch.bool) if trace.mask is None else trace.mask.bool()
    return [float(state[real].double().square().mean().sqrt()) for state in trace.states]


def stream_growth(layers: int = 12) -> Found:
    """The stream's size by depth at the start: it grows where nothing norms it (pre-norm), and stays 1 in post-norm.

    If updates are of size s and at right angles to the stream, n of them make sqrt(1 + n s^2).
    """
    ids = random_ids(4, 24)
    found = {name: tuple(rms_by_depth(trace(_untrained(form, layers, 0), ids))) for name, form in FORMS.items()}
    rows = tuple(zip(range(2 * layers + 1), *found.values(), strict=True))
    table = Table("root mean square of the stream before any step", ("sublayers passed", *found), rows)
    x = tuple(map(float, range(2 * layers + 1)))
    return Found((table,), Curves("growth of the stream", x, tuple(found.items()), ("sublayers", "root mean square")))


@torch.no_grad()
def stream_growth_on(trace: Trace, row: int = 0) -> Found:
    """The norm of the stream by depth on a text: of the first token, which often grows far more, and of all others."""
    columns, rows = trace.columns(row), []
    for name, state in zip(state_sites(trace.transformer), trace.states, strict=True):
        norms = state[row, columns].double().norm(dim=-1)
        others = float(norms[1:].mean()) if len(norms) > 1 else None
        rows.append((name, float(norms[0]), others))
    table = Table("norm of the stream", ("state", "first token", "others, mean"), tuple(rows))
    x = tuple(map(float, range(len(rows))))
    series = tuple((name, table.column(name)) for name in table.columns[1:] if None not in table.column(name))
    return Found((table,), Curves("norm of the stream by depth", x, series, ("state", "norm"), True))

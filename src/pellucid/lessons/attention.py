"""Attention by its numbers: why scores are scaled, what the mask does, what heads cost, how the work grows."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ..inside.trace import Trace
from ..inside.trace import trace as run
from ..views import Table
from .drawing import Bars, Curves
from .found import Found
from .small import site

WIDTHS = (4, 16, 64, 256, 1024)
SCORES = (16.0, 8.0, 0.0, -8.0)
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)


def scaling(widths: Sequence[int] = WIDTHS, samples: int = 20000, seed: int = 0) -> Found:
    """The variance of q.k for independent components of mean 0 and variance 1: d_k, and 1 after division by sqrt(d_k).

    The standard error of a sample's variance is that for normal components, d_k sqrt((2 + 6 / d_k) / samples).
    """
    draws, rows = torch.Generator().manual_seed(seed), []
    for width in widths:
        q, k = (torch.randn(samples, width, generator=draws) for _ in range(2))
        products = (q * k).sum(1).double()
        error = width * ((2 + 6 / width) / samples) ** 0.5
        rows.append((width, float(products.var()), error, float((products / width**0.5).var()), error / width))
    names = ("d_k", "variance of q.k", "error", "of q.k / sqrt(d_k)", "error ")
    table = Table(
        f"{samples:,} pairs of random queries and keys", names, tuple(rows), "error: of the sample's variance."
    )
    curves = (("q.k", table.column(names[1])), ("q.k / sqrt(d_k)", table.column(names[3])))
    return Found((table,), Curves("variance of scores", tuple(map(float, widths)), curves, ("d_k", "variance"), True))


def saturation(widths: Sequence[int] = WIDTHS, keys: int = 16, samples: int = 1000, seed: int = 0) -> Found:
    """What softmax makes of unscaled scores: almost all on one key, little entropy, hardly any gradient."""
    draws, rows = torch.Generator().manual_seed(seed), []
    for width in widths:
        query = torch.randn(samples, 1, width, generator=draws, dtype=torch.float64)
        key = torch.randn(samples, keys, width, generator=draws, dtype=torch.float64)
        scores = (query * key).sum(-1)
        cells = []
        for each in (scores, scores / width**0.5):
            p = each.softmax(-1)
            cells.append((float(p.amax(-1).mean()), float(entropy(p).mean()), float(slope(p).mean())))
        rows.append((width, *(value for pair in zip(*cells, strict=True) for value in pair)))
    names = ("d_k", "largest p", "scaled", "entropy", "scaled ", "gradient", "scaled  ")
    note = (
        f"{keys} keys, {samples:,} queries; entropy in nats, at most {float(torch.tensor(keys).log()):.3f}; gradient: "
        "the norm of the Jacobian dp / ds."
    )
    table = Table("softmax of q.k, unscaled and scaled by 1 / sqrt(d_k)", names, tuple(rows), note)
    curves = (("unscaled", table.column("entropy")), ("scaled", table.column("scaled ")))
    return Found((table,), Curves("entropy of the softmax", tuple(map(float, widths)), curves, ("d_k", "nats")))


def entropy(p: Float[Tensor, "*rows S"]) -> Float[Tensor, "*rows"]:
    """- sum p ln p in nats."""
    return torch.special.entr(p).sum(-1)


def slope(p: Float[Tensor, "*rows S"]) -> Float[Tensor, "*rows"]:
    """The norm of softmax's Jacobian diag(p) - p p^T: the root of S2 - 2 S3 + S2^2, Sn the sum of n-th powers."""
    two, three = p.square().sum(-1), p.pow(3).sum(-1)
    return (two - 2 * three + two.square()).clamp(min=0).sqrt()


def probabilities(
    scores: Float[Tensor, "*rows S"], temperature: float = 1.0, d_head: float | None = None
) -> Float[Tensor, "*rows S"]:
    """softmax(scores / (sqrt(d_head) T)), without `d_head` unscaled. Raises ValueError where T is not above 0."""
    if not temperature > 0:
        raise ValueError(f"a temperature must be above 0, got {temperature}")
    return (scores / (temperature * (1 if d_head is None else d_head**0.5))).softmax(-1)


def softmax(scores: Sequence[float] = SCORES, d_head: int = 64) -> Found:
    """Scores q.k as probabilities: scaled or not, at three temperatures, and with the largest score edited to 0."""
    raw = torch.as_tensor(scores, dtype=torch.float64)
    if raw.ndim != 1 or not len(raw) or not bool(raw.isfinite().all()):
        raise ValueError(f"softmax is of a row of finite scores, got {raw.tolist()}")
    return _softmax(raw, [str(at) for at in range(len(raw))], d_head, f"softmax of scores, d_k = {d_head}")


@torch.no_grad()
def softmax_on(trace: Trace, row: int = 0) -> Found:
    """The scores of the last token's query in the middle layer, of the head that attends most evenly there."""
    layer = trace.transformer.config.n_layers // 2
    name, last, columns = site(trace, f"{layer}.attention"), trace.column(row), trace.columns(row)
    seen = trace[f"{name}.scores"][row, :, last, columns].double().cpu()
    head = int(entropy(seen.softmax(-1)).argmax())
    scale = trace.transformer.config.attention_scale(layer)
    visible = seen[head].isfinite()
    labels = [f"{at} {token}" for at, token in enumerate(trace.tokens(row)) if bool(visible[at])]
    return _softmax(seen[head][visible] / scale, labels, scale**-2, f"{name}, head {head}, the last token's query")


def _softmax(raw: Float[Tensor, "S"], labels: Sequence[str], d_head: float, title: str) -> Found:
    edited = raw.clone()
    edited[raw.argmax()] = 0.0
    ways = {
        "T = 1": probabilities(raw, 1.0, d_head),
        "T = 0.5": probabilities(raw, 0.5, d_head),
        "T = 2": probabilities(raw, 2.0, d_head),
        "unscaled": probabilities(raw),
        "largest to 0": probabilities(edited, 1.0, d_head),
    }
    columns = [p.tolist() for p in ways.values()]
    rows = tuple(zip(labels, raw.tolist(), *columns, strict=True))
    table = Table(title, ("key", "q.k", *ways), rows, "Probabilities; scaled by 1 / sqrt(d_k) but where it says not.")
    spread = tuple((name, float(entropy(p)), float(entropy(p).exp()), float(p.max())) for name, p in ways.items())
    names = ("way", "entropy (nats)", "keys (e^entropy)", "largest")
    return Found((table, Table("how spread they are", names, spread)), Bars(table, "T = 1"))


def causal_mask(length: int = 4) -> Found:
    """Scores, the mask (0 where s <= t, -inf above), and the pattern: no query sees a later key."""
    t = torch.arange(length, dtype=torch.float64)
    scores = (t[:, None] + 1) * (t[None] + 1) / length
    mask = torch.zeros(length, length, dtype=torch.float64).masked_fill(t[None] > t[:, None], -torch.inf)
    tables = []
    for name, values in (
        ("scores", scores),
        ("scores + mask", scores + mask),
        ("pattern", (scores + mask).softmax(-1)),
    ):
        rows = tuple((at, *row) for at, row in enumerate(values.tolist()))
        tables.append(Table(name, ("query", *(f"key {at}" for at in range(length))), rows))
    return Found(tuple(tables))


@torch.no_grad()
def causal_mask_on(trace: Trace, row: int = 0) -> Found:
    """The logits at a position equal those of the text cut off behind it: what follows cannot be seen.

    Raises ValueError for a model that sees both sides.
    """
    if not trace.transformer.config.causal:
        raise ValueError("this model sees what follows, which is its purpose: it has no causal mask")
    columns, tokens, rows = trace.columns(row), trace.tokens(row), []
    shown = sorted({*range(0, len(columns), max(1, len(columns) // 16)), len(columns) - 1})
    ids, logits = trace.ids[row : row + 1, columns], trace.logits_at(row, [columns[at] for at in shown])
    types = None if trace.recording.types is None else trace.recording.types[row : row + 1, columns]
    for at, whole in zip(shown, logits, strict=True):
        with trace.precision.restored():
            alone = run(trace.transformer, ids[:, : at + 1], types=None if types is None else types[:, : at + 1])
        rows.append((at, tokens[at], at + 1, float((alone.logits_at(0, [at])[0] - whole).abs().max())))
    note = f"Logits lie between {float(logits.min()):.1f} and {float(logits.max()):.1f}."
    table = Table("the whole text against its beginnings", ("position", "token", "tokens read", "largest difference"),
                  tuple(rows), note)  # fmt: skip
    return Found((table,))


def cost(width: int = 768, lengths: Sequence[int] = LENGTHS) -> Found:
    """Multiplications and additions of one block (two for each), d_ff = 4 d: what grows with T, and what with T^2.

    Scores and mixing take 2 T^2 d each, the four projections 8 T d^2, the feed-forward layer 16 T d^2. Masked scores
    are counted: a kernel that leaves them out does half of the first.
    """
    rows = []
    for T in lengths:
        mixed, projected, ffn = 4 * T**2 * width, 8 * T * width**2, 16 * T * width**2
        rows.append((T, mixed, projected, ffn, mixed / (mixed + projected + ffn)))
    names = ("T", "scores and mixing", "projections", "feed-forward", "share of the first")
    note = (
        f"At T = 6 d = {6 * width:,} scores and mixing take as much as all matrices; twice the length, four times it."
    )
    table = Table(f"operations in one block of width {width}", names, tuple(rows), note)
    series = tuple((name, tuple(map(float, table.column(name)))) for name in names[1:4])
    return Found(
        (table,), Curves("operations by length", tuple(map(float, lengths)), series, ("T", "operations"), True)
    )

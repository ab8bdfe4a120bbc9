"""Heads: what they cost, that what they write adds up, and that they do not talk to each other within a layer."""

from dataclasses import replace

import torch

from ..inside.circuits import attention_of
from ..inside.edits import add
from ..inside.trace import Trace
from ..views import Table
from .found import Found
from .small import site


def heads(width: int = 768, count: int = 12) -> Found:
    """Each head projects all d features into d / H: H of them cost what one head of full width costs.

    Raises ValueError for a width that the heads cannot share evenly.
    """
    if count < 1 or width % count:
        raise ValueError(f"{count} heads cannot share {width} features evenly")
    d_head = width // count
    shapes = (
        ("W_Q^h, W_K^h, W_V^h", f"{width} x {d_head}", 3 * width * d_head),
        ("W_O^h", f"{d_head} x {width}", d_head * width),
        ("one head", None, 4 * width * d_head),
        (f"{count} heads", None, count * 4 * width * d_head),
        ("one head of full width", f"4 of {width} x {width}", 4 * width * width),
    )
    cost = tuple(
        (name, H, K, 2 * H * K, 8 * H * width * K)
        for name, H, K in ((f"{count} heads", count, d_head), ("one head of full width", 1, width))
    )
    names = ("", "heads", "d_k", "scores, for each pair", "projections, for each token")
    return Found(
        (
            Table(f"matrices of a head, width {width}", ("part", "shape", "parameters"), shapes, "Without biases."),
            Table("operations", names, cost, "Two for each multiplication with its addition."),
        )
    )


@torch.no_grad()
def heads_on(trace: Trace) -> Found:
    """concat(heads) W_O against the sum of head_h W_O^h plus the bias; and what one head's query does to the others.

    The last: the query of head 0 is moved, and the outputs of all other heads of its layer are compared.
    """
    rows = []
    for layer in range(trace.transformer.config.n_layers):
        name, attention = site(trace, f"{layer}.attention"), attention_of(trace.transformer, layer)
        outputs, writes = trace[f"{name}.heads"].double(), trace[f"{name}.writes"].double()
        joined = outputs.flatten(2) @ attention.out.weight.detach().double().T
        apart = float((joined - writes.sum(2)).abs().max())
        with_bias = writes.sum(2) if attention.out.bias is None else writes.sum(2) + attention.out.bias.double()
        update = trace[f"{name}.update"].double()
        moved = trace.edit(add(f"{name}.query", 1.0, head=0))[f"{name}.heads"].double()
        change = (moved - outputs).abs().amax((0, 1, 3))
        others = float(change[1:].max()) if len(change) > 1 else 0.0
        rows.append((layer, apart, float((update - with_bias).abs().max()), float(change[0]), others))
    names = ("layer", "concat W_O - sum", "update - sum - b_O", "head 0 moved by", "others moved by")
    note = f"Largest differences; updates reach {_largest(trace):.3g}. Moved: head 0's query by 1 in every feature."
    return Found((Table("heads of each layer", names, tuple(rows), note),))


def _largest(trace: Trace) -> float:
    layers = range(trace.transformer.config.n_layers)
    return max(float(trace[site(trace, f"{layer}.attention.update")].abs().max()) for layer in layers)


@torch.no_grad()
def recomputed_on(one: Trace, other: Trace) -> Found:
    """The same head on two texts: its weights stay as they are, its pattern is made anew.

    Shown is the last token's query of the head whose pattern differs most between the two (total variation).
    """
    best, at = -1.0, (0, 0)
    for layer in range(one.transformer.config.n_layers):
        rows = [_last_query(trace, layer) for trace in (one, other)]
        length = max(row.shape[1] for row in rows)
        a, b = (torch.nn.functional.pad(row, (0, length - row.shape[1])) for row in rows)
        apart = (a - b).abs().sum(1) / 2
        if float(apart.max()) > best:
            best, at = float(apart.max()), (layer, int(apart.argmax()))
    layer, head = at
    tables = []
    for name, trace in (("first", one), ("second", other)):
        weights = _last_query(trace, layer)[head].tolist()
        rows = tuple(zip(range(len(weights)), trace.tokens(), weights, strict=True))
        tables.append(Table(f"head {layer}.{head} on the {name} text", ("position", "token", "attention"), rows))
    note = f"Total variation {best:.3f} of at most 1; the same matrices made both."
    return Found((tables[0], replace(tables[1], note=note)))


def _last_query(trace: Trace, layer: int) -> torch.Tensor:
    """H x P: what the last token of the first row attends to."""
    pattern = trace[site(trace, f"{layer}.attention.pattern")][0]
    return pattern[:, trace.column(0)][:, trace.columns(0)].double().cpu()

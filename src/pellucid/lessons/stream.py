"""The stream through the stack: what it begins with, what is added, what is read of it, and what comes out."""

import torch
from torch import Tensor

from ..inside.edits import zero
from ..inside.reading import state_sites
from ..inside.trace import Trace
from ..model.layers import Norm
from ..views import Table
from .drawing import Bars
from .found import Found
from .norms import of_norm
from .small import site


@torch.no_grad()
def input_on(trace: Trace, row: int = 0) -> Found:
    """x_t = E[id_t] + P_t: the first state as the sum of its parts, with the largest difference; rotary has no P."""
    columns, first = trace.columns(row), site(trace, "0.stream")
    whole = site(trace, "embed.sum") if trace.transformer.config.embedding_norm else first
    names = [name for name in ("embed.token", "embed.position", "embed.type") if site(trace, name) in trace.names]
    parts = [trace[site(trace, name)][row, columns].double() for name in names]
    state = trace[whole][row, columns].double()
    off = (torch.stack(parts).sum(0) - state).abs().amax(-1)
    sizes = [part.norm(dim=-1).tolist() for part in (*parts, state)]
    ids = trace.ids[row, columns].tolist()
    rows = tuple(zip(range(len(ids)), trace.tokens(row), ids, *sizes, off.tolist(), strict=True))
    columns_of = ("position", "token", "id", *(f"|{name}|" for name in (*names, whole)), "difference")
    return Found((Table("what the stream begins with", columns_of, rows),))


def stack_on(trace: Trace) -> Found:
    """T x d before and after every sublayer; how deep the stack is by blocks and by sublayers."""
    transformer = trace.transformer
    parts = [" and ".join(part.name for part in step.parts) for step in transformer.steps]
    shapes = [" x ".join(map(str, state.shape[1:])) for state in trace.states]
    rows = tuple(zip(state_sites(transformer), shapes, [*parts, "the final norm, the unembedding"], strict=True))
    count = sum(len(step.parts) for step in transformer.steps)
    note = f"{len(transformer.blocks)} blocks, which are {count} sublayers. The same for any number of rows."
    return Found((Table("the stack", ("state", "T x d", "is read by"), rows, note),))


@torch.no_grad()
def block_on(trace: Trace, layer: int = 0) -> Found:
    """One block line by line: pre-norm x + F(norm(x)), post-norm norm(x + F(x)), parallel x + F(norm(x)) + G(norm(x)).

    Every line is computed from its formula, and compared with what the model made.
    """
    rows: list[tuple[object, ...]] = []
    for at, step in enumerate(trace.transformer.steps):
        if not any(part.layer == layer for part in step.parts):
            continue
        x, then = trace.states[at], trace.states[at + 1]
        total = x.double()
        for part in step.parts:
            norm = step.shared or (part.norm if part.reads_normed else None)
            read = x if norm is None else _normed(norm, x)
            rows.append((f"{part.name}.input", "x" if norm is None else "norm(x)", _apart(trace, part.name, read)))
            total = total + trace[f"{part.name}.update"].double()
        formula = "x + " + " + ".join(part.name.rpartition(".")[2] for part in step.parts)
        if step.after is not None:
            formula, total = f"norm({formula})", _normed(step.after, total)
        rows.append((state_sites(trace.transformer)[at + 1], formula, _most(total - then)))
    table = Table(f"block {layer}", ("value", "formula", "largest difference"), tuple(rows))
    return Found((table,))


@torch.no_grad()
def corrections_on(trace: Trace, row: int = 0) -> Found:
    """The embedding and all corrections add up to the last state; a sublayer that writes zero leaves the stream alone.

    Raises ValueError for a post-norm model, whose states are normed and so no sums.
    """
    transformer = trace.transformer
    if any(step.after is not None for step in transformer.steps):
        raise ValueError("in a post-norm model a norm follows every sum, so the last state is no sum of corrections")
    total, rows = trace.states[0].double(), []
    parts = [(at + 1, part) for at, step in enumerate(transformer.steps) for part in step.parts]
    for at, part in parts:
        update = trace[f"{part.name}.update"].double()
        total = total + update
        last_of_step = part is transformer.steps[at - 1].parts[-1]
        off = _most(total - trace.states[at]) if last_of_step else None
        rows.append((part.name, float(update[row, trace.columns(row)].norm(dim=-1).mean()), off))
    name = transformer.steps[-1].parts[-1].name
    others = [part.name for part in transformer.steps[-1].parts]
    silent = trace.edit(*(zero(f"{each}.update") for each in others))
    unmoved = _most(silent.states[-1] - silent.states[-2])
    names = ("written by", "mean norm", "sum so far - state")
    note = f"Largest differences. With what {' and '.join(others)} write set to 0 the state moves by {unmoved:g}."
    table = Table(f"embedding + corrections, to {name}", names, tuple(rows), note)
    return Found((table,), Bars(table, "mean norm"))


@torch.no_grad()
def next_token_on(trace: Trace, row: int = 0) -> Found:
    """Every position is scored against the token that follows; the last one's softmax is what text is continued with.

    Raises ValueError for a model that sees what follows.
    """
    if not trace.transformer.config.causal:
        raise ValueError("this model sees what follows, so it does not predict it: pellucid fill fills its masks")
    columns, tokens = trace.columns(row), trace.tokens(row)
    logs = trace.logits_at(row, columns).double().log_softmax(-1)
    targets = trace.ids[row, columns][1:].tolist()
    rows = []
    for at, (token, target) in enumerate(zip(tokens, targets, strict=False)):
        p, rank = float(logs[at, target].exp()), int((logs[at] > logs[at, target]).sum()) + 1
        rows.append((at, token, tokens[at + 1], p, -float(logs[at, target]), rank))
    names = ("position", "token", "next", "probability", "loss (nats)", "rank")
    mean = sum(row[4] for row in rows) / len(rows) if rows else float("nan")
    scored = Table("what each position says of the next token", names, tuple(rows), f"Mean loss {mean:.4f} nats.")
    return Found((scored, trace.top(5, row)))


def _normed(norm: Norm, x: Tensor) -> Tensor:
    """A norm by its formula, vector by vector, in float64."""
    flat = [of_norm(norm, vector).result for vector in x.flatten(0, -2)]
    return torch.stack(flat).view(x.shape).to(x.device)


def _apart(trace: Trace, part: str, expected: Tensor) -> float:
    return _most(trace[f"{part}.input"].double() - expected.double())


def _most(difference: Tensor) -> float:
    return float(difference.abs().max())

"""The lessons' claims about the inside of a trained model, each shown by the tool that can tell."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch

from ..inside.circuit_by_hand import INDUCTION, PREVIOUS, START, induction_circuit
from ..inside.edits import Edit, zero
from ..inside.effects import Effects
from ..inside.geometry import angles, kept, step_lengths, trajectory, write_cosines, write_norms
from ..inside.grading import report_card
from ..inside.neuron_weights import promoted, reads, writes
from ..inside.report_card import ReportCard
from ..inside.superposition import spread_of
from ..inside.toy_superposition import ToySettings
from ..inside.toy_superposition import toy_model as learned
from ..inside.trace import Trace, trace
from ..views import Table
from .drawing import Bars, Curves, Grid, Picture
from .found import Found
from .small import site

SPARSITIES = (0.0, 0.7, 0.9, 0.97, 0.99)
WITHOUT_FIRST = "Without the first token, whose state often grows far beyond all others."


@torch.no_grad()
def lens_on(trace: Trace) -> Found:
    """What each depth would say after the last token, and how sure it is."""
    table = trace.lens()
    return Found(
        (table,), Bars(Table(table.title, table.columns[1:], tuple(row[1:] for row in table)), table.columns[4])
    )


@torch.no_grad()
def contributions_on(trace: Trace) -> Found:
    """The logit of the most probable next token as a sum of what every sublayer wrote."""
    token = trace.top(1).column("id")[0]
    ledger = trace.ledger(token)
    table = ledger.table()
    return Found((table,), Bars(table, "amount"))


@torch.no_grad()
def cancelling_on(trace: Trace) -> Found:
    """Every write stays in the sum unless later ones cancel it: how much of each the last state still holds.

    1: whole; 0: taken back; above 1: written again. Medians over tokens, the first left out; the figure are cosines of
    writes with earlier ones. Raises ValueError for a post-norm model.
    """
    held, cosines, rows = _later(kept(trace)), write_cosines(trace), []
    for at, (name, share) in enumerate(zip(held.rows, held.values, strict=True)):
        # The row of each write holds its cosines with earlier ones; the first write has none.
        earlier = cosines.values[at - 1][~cosines.values[at - 1].isnan()] if at else None
        mean = None if earlier is None else float(earlier.mean())
        least = None if earlier is None else float(earlier.min())
        rows.append((name, float(share.median()), float((share < 0.5).double().mean()), mean, least))
    names = ("write", "share kept", "tokens that lose half", "cosine with earlier", "least")
    return Found((Table("what becomes of each write", names, tuple(rows), WITHOUT_FIRST),), Grid(cosines))


def _later(found: Effects) -> Effects:
    """The same without the first token, where there are others."""
    return found if len(found.columns) < 2 else replace(found, columns=found.columns[1:], values=found.values[:, 1:])


@torch.no_grad()
def trajectory_on(trace: Trace) -> Found:
    """The path of the stream: how far each step goes, how it turns, and its picture along two principal axes."""
    every = (step_lengths(trace), step_lengths(trace, relative=True), angles(trace))
    lengths, relative, turns = map(_later, every)
    path = trajectory(trace, first=min(1, len(trace.columns(0)) - 1))
    means = [each.values.mean(1).tolist() for each in (lengths, relative, turns)]
    rows = tuple(zip(lengths.rows, means[0], means[1], [None, *means[2]], strict=True))
    names = ("state reached", "step", "relative to the state", "angle to the step before")
    note = ", ".join(f"{share:.1%}" for share in path.explained.tolist())
    note = f"{WITHOUT_FIRST} Two axes hold {note} of the variance."
    table = Table("steps of the stream, mean over tokens", names, rows, note)
    return Found((table,), Picture(path))


@torch.no_grad()
def depth_used_on(trace: Trace) -> Found:
    """How much each block does to each token: the size r of what it writes, relative to the stream that it reads.

    Summed and drawn is r / (1 + r), which is 1/2 where a write is as large as the state.
    """
    found = _later(write_norms(trace))
    values, names = found.values / (1 + found.values), (*found.names[:2], "r / (1 + r)")
    share = replace(found, title="size of what is written, beside the stream", values=values, names=names)
    tokens = tuple(zip(found.columns, share.values.sum(0).tolist(), strict=True))
    parts = tuple(
        (name, *(float(statistic(row)) for statistic in (torch.mean, torch.amin, torch.amax)))
        for name, row in zip(found.rows, found.values, strict=True)
    )
    title = "size of what is written, relative to the stream (r), over tokens"
    by_token = Table("all sublayers together, by token", ("token", "sum of r / (1 + r)"), tokens, WITHOUT_FIRST)
    return Found((Table(title, ("written by", "mean", "least", "most"), parts), by_token), Grid(share))


def specialise_on(trace: Trace, strongest: int = 5) -> Found:
    """Heads specialise: how many of each kind, named after what they do more than any would by chance."""
    card = report_card(trace.transformer, trace.tokenizer)
    return Found((by_kind(card, strongest),), Bars(by_kind(card, strongest), "heads"))


def by_kind(card: ReportCard, strongest: int) -> Table:
    """One line a kind: how many heads it has, and which are furthest above chance."""
    rows = []
    for found in (each for each in card.measures if each.kind):
        named = card.of(found.kind)
        best = ", ".join(f"{layer}.{head}" for layer, head, *_ in named.top(strongest))
        rows.append((found.kind, len(named), found.threshold, best))
    total = sum(len(kinds) for kinds in card.kinds)
    note = f"Of {total} heads; a score above the threshold is no chance."
    return Table("heads by kind", ("kind", "heads", "threshold", "strongest, as layer.head"), tuple(rows), note)


@torch.no_grad()
def key_value_on(trace: Trace, k: int = 5) -> Found:
    """A feed-forward layer as a memory: the strongest neuron at the last token, low, in the middle and high.

    What its key (its column of W_up) reads of the embeddings, and which tokens its value (its row of W_down) promotes;
    the latter not for a model whose head is more than a matrix.
    """
    linear = trace.transformer.unembed is not None and trace.transformer.head is None
    layers = trace.transformer.config.n_layers
    rows, tables = [], []
    column = trace.column(0)
    for layer in sorted({layers // 6, layers // 2, layers - 1 - layers // 6}):
        values = trace[site(trace, f"{layer}.ffn.neurons")][0, column].double()
        neuron = int(values.abs().argmax())
        rows.append((layer, neuron, float(values[neuron]), float(values.abs().median())))
        tables.append(reads(trace.transformer, layer, neuron, k, trace.tokenizer))
        if linear:
            tables.append(promoted(trace.transformer, layer, neuron, k, trace.tokenizer))
    names = ("layer", "neuron", "value", "median of all")
    token = trace.tokens()[-1]
    return Found((Table(f"strongest neurons at the last token, {token!r}", names, tuple(rows)), *tables))


@torch.no_grad()
def superposition_on(trace: Trace) -> Found:
    """How the directions that neurons write lie: more of them than dimensions, and how near to right angles."""
    layers = trace.transformer.config.n_layers
    found = [spread_of(writes(trace.transformer, layer), bins=41) for layer in range(layers)]
    rows = tuple(
        (layer, each.n, each.d, each.mean_square, each.random, each.largest, each.effective)
        for layer, each in enumerate(found)
    )
    names = ("layer", "neurons", "d", "mean squared cosine", "random", "largest", "dimensions filled")
    x = tuple((low + high) / 2 for low, high in pairwise(found[0].edges))
    series = [(f"layer {layer}", found[layer].shares) for layer in sorted({0, layers // 2, layers - 1})]
    figure = Curves("cosines of pairs", x, (*series, ("random", found[0].expected)), ("cosine", "share of pairs"))
    return Found((Table("directions of neurons", names, rows),), figure)


def toy_model(steps: int = 800, sparsities: Sequence[float] = SPARSITIES) -> Found:
    """More features than dimensions fit where few are active at once: 20 features in 5 dimensions, ever sparser."""
    models = [learned(ToySettings(sparsity=sparsity, steps=steps)) for sparsity in sparsities]
    rows = tuple(
        (model.settings.sparsity, model.stored, float(model.dimensionality.sum()),
         float(model.dimensionality[model.norms > 0.5].mean()), model.loss)
        for model in models
    )  # fmt: skip
    names = ("chance of 0", "features stored", "dimensions used", "dimensions for each", "loss")
    note = "20 features in 5 dimensions; each counts 0.9 times the one before it (Elhage et al. 2022)."
    table = Table("toy model of superposition", names, rows, note)
    series = tuple((f"{model.settings.sparsity:g}", tuple(model.norms.tolist())) for model in models)
    x = tuple(map(float, range(20)))
    return Found((table, models[-1].table()), Curves("norm of each feature, by the chance of 0", x, series,
                                                     ("feature", "norm")))  # fmt: skip


def induction(seed: int = 0, length: int = 12) -> Found:
    """A B ... A predicts B: the two-layer circuit built by hand, on random tokens twice, whole and without a head."""
    circuit = induction_circuit()
    draws = torch.Generator().manual_seed(seed)
    order = torch.randperm(circuit.config.vocab_size - 1, generator=draws)[:length] + 1
    ids = torch.cat((torch.tensor([START]), order, order))[None]
    whole = trace(circuit, ids)
    ways: dict[str, tuple[Edit, ...]] = {
        "whole": (),
        "without the previous-token head": (zero(f"{PREVIOUS[0]}.attention.heads", head=PREVIOUS[1]),),
        "without the induction head": (zero(f"{INDUCTION[0]}.attention.heads", head=INDUCTION[1]),),
    }
    rows = []
    for name, edits in ways.items():
        found = whole.edit(*edits)
        logits = found.logits_at(0, list(range(length + 1, 2 * length))).double()
        right = logits.log_softmax(-1)[torch.arange(length - 1), order[1:]]
        share = (logits.argmax(-1) == order[1:]).double().mean()
        rows.append((name, float(-right.mean()), float(share)))
    names = ("circuit", "loss on the second copy (nats)", "right")
    note = f"{length} tokens twice; guessing evenly among {circuit.config.vocab_size} has a loss of "
    note += f"{float(torch.tensor(float(circuit.config.vocab_size)).log()):.3f}."
    card = by_kind(report_card(circuit, start=START), 2)
    return Found((Table("induction", names, tuple(rows), note), card))

"""Induction heads of a real model: by score, by composition of weights, and by what happens without them.

    python examples/induction_smollm2.py [--draws 60] [--out docs/induction_smollm2.md]

Three independent signs that a head continues A B ... A with B. Its score (attention to the token after the earlier
occurrence) stands far above the same score on texts that repeat nothing. Its keys read what a previous-token head of an
earlier layer writes, more than chance would have it (K-composition, as a z-score among all pairs of heads). And without
the strongest of them the loss on the second copy of random tokens rises, which it does not without as many other heads,
drawn at random many times.
"""

import argparse
import datetime
import random
import statistics
from pathlib import Path

import torch

import pellucid
from pellucid.inside.composition import composition
from pellucid.inside.head_scores import measure
from pellucid.inside.head_targets import induction, previous_token
from pellucid.inside.head_texts import begun, pool_of, random_rows, repeated
from pellucid.inside.in_context import induction_loss, token_losses
from pellucid.inside.plan import plan
from pellucid.inside.trace import trace

HEADS = 8  # that are taken away
PERIOD, ROWS = 25, 6
Head = tuple[int, int]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--draws", type=int, default=60)
    options.add_argument("--out", type=Path, default=Path("docs/induction_smollm2.md"))
    given = options.parse_args()
    model = pellucid.load("smollm2")
    start = model.tokenizer.bos_id
    tokens = random_rows(pool_of(model.config.vocab_size, model.tokenizer, start), 2 * PERIOD, ROWS, 0)
    text = repeated(tokens[:, :PERIOD], 2, start)
    found, control = trace(model.transformer, text), trace(model.transformer, begun(tokens, start))
    scores = measure(found, [induction(found)])[0]
    null = measure(control, [induction(found)])[0]
    previous = measure(found, [previous_token(found)])[0]
    heads = [(int(layer), int(head)) for layer, head, *_ in scores.top(HEADS).rows]
    given.out.write_text(page(model, heads, scores, null, previous, without(model, text, heads, given.draws)))
    print(given.out.read_text())


def without(model: pellucid.Model, text: torch.Tensor, heads: list[Head], draws: int) -> dict[str, list[float]]:
    """The loss on the second copy: as it is, without the heads, and without as many others, draw by draw.

    The others come from the same layers, as many in each, so that depth alone explains nothing.
    """
    layers, width = [layer for layer, _ in heads], model.config.n_heads
    chosen = random.Random(0)
    found = {"whole": [lost(model, text, [])], "without": [lost(model, text, heads)], "others": []}
    for _ in range(draws):
        others: list[Head] = []
        for layer in sorted(set(layers)):
            free = [(layer, head) for head in range(width) if (layer, head) not in heads]
            others += chosen.sample(free, min(layers.count(layer), len(free)))
        found["others"].append(lost(model, text, others))
    return found


def lost(model: pellucid.Model, text: torch.Tensor, heads: list[Head]) -> float:
    """The loss on the second copy, from its second token on, in nats, with some heads' outputs set to zero."""
    edits = [pellucid.zero(f"{layer}.attention.heads", head=head) for layer, head in heads]
    looks = plan(model.transformer, edits).looks()
    return induction_loss(token_losses(model.transformer, text, looks=looks), PERIOD, 1)


def page(model, heads, scores, null, previous, losses) -> str:
    """What was found, in Markdown."""
    best = [(int(layer), int(head)) for layer, head, *_ in previous.top(12).rows]
    z = composition(model.transformer, "K").z_among_pairs
    lines = [
        "# Induction heads in SmolLM2",
        "",
        f"{datetime.date.today()}, made by `python examples/induction_smollm2.py`. {ROWS} rows of {PERIOD} random "
        f"tokens, twice; n = {ROWS * PERIOD} queries.",
        "",
        "| head | induction score | on texts that repeat nothing | K-composition: with the earlier previous-token head "
        "(its score) | z among all pairs |",
        "| --- | --- | --- | --- | --- |",
    ]
    for layer, head in heads:
        before = [(float(z[a, b, layer, head]), (a, b)) for a, b in best if a < layer]
        best_z, (a, b) = max(before) if before else (float("nan"), (-1, -1))
        with_head = f"{a}.{b} ({float(previous.score[a, b]):.2f})" if before else "none"
        score, rest = float(scores.score[layer, head]), float(null.score[layer, head])
        lines.append(f"| {layer}.{head} | {score:.2f} | {rest:.3f} | {with_head} | {best_z:.1f} |")
    others = sorted(losses["others"])
    low, high = others[len(others) // 20], others[-1 - len(others) // 20]
    whole, gone = losses["whole"][0], losses["without"][0]
    more = sum(each >= gone for each in others)
    lines += [
        "",
        f"Loss on the second copy, from its second token on: **{whole:.2f}** nats with all heads, **{gone:.2f}** "
        f"without these {len(heads)}. Without as many other heads of the same layers, {len(others)} draws: median "
        f"**{statistics.median(others):.2f}**, nine in ten between {low:.2f} and {high:.2f}; {more} of {len(others)} "
        "draws cost as much.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

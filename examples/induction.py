"""A two-layer model learns to copy, and its induction heads are seen to form.

    python examples/induction.py [--folder runs/induction] [--steps 800] [--seed 1] [--figure docs/induction.png]

The text is random: each line is a few different letters and digits over and over, so that nothing can be known of a
period but by looking back for the last occurrence of the character at hand, and reading what came after it. That takes
two heads in a row (Elhage et al. 2021; Olsson et al. 2022): one in the first layer that brings each token the one
before it, and one in the second that finds the place by it.
"""

import argparse
import random
import string
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from pellucid.inside.head_watches import repeated_tokens
from pellucid.training.run import Run
from pellucid.training.settings import run_from
from pellucid.training.watch_curve import Series, series
from pellucid.training.watch_names import CHANCE, LOSS

LETTERS = string.ascii_letters + string.digits
SHORTEST, LONGEST, LINE, LINES = 4, 32, 128, 20_000
SCORES = ("induction", "previous")
NO_HEADS = (LOSS, CHANCE)  # measures that stand beside those of heads
MODEL = {
    "n_layers": 2,
    "d_model": 64,
    "n_heads": 2,
    "d_ff": 64,
    "positions": {"kind": "Rotary", "base": 100.0},
    "init": {"kind": "Init", "std": 0.05},
}


def text(seed: int) -> str:
    """Lines of one random period each."""
    draw = random.Random(seed)
    lines = []
    for _ in range(LINES):
        period = "".join(draw.sample(LETTERS, draw.randint(SHORTEST, LONGEST)))
        lines.append((period * (LINE // len(period) + 1))[:LINE])
    return "".join(lines)


def settings(folder: Path, steps: int, seed: int) -> dict[str, object]:
    """The run, as a TOML file would have it."""
    return {
        "folder": str(folder / "run"),
        "steps": steps,
        "seed": seed,
        "model": MODEL,
        "data": {"text": [str(folder / "text.txt")], "rows": 32, "length": 64, "validation": 0.02},
        "schedule": {"name": "constant", "peak": 3e-3, "warmup": 50},
        "evaluate": {"every": 200, "rows": 32, "batches": 4},
        "sample": {"every": 0},
        "log": {"watch_every": 10},
        "save": {"every": 200},
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--folder", type=Path, default=Path("runs/induction"))
    options.add_argument("--steps", type=int, default=800)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--figure", type=Path)
    given = options.parse_args()
    torch.set_num_threads(1)  # the matrices are so small that more threads only wait for one another
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / "text.txt").write_text(text(given.seed), encoding="ascii")
    run = Run(run_from(settings(given.folder, given.steps, given.seed), "induction"))
    probe = repeated_tokens(run.transformer.config, run.tokenizer)
    run.watches |= {"induction": probe.induction, "previous": probe.previous}
    start = time.perf_counter()
    for report in run:
        if report.watched and (report.record.step + 1) % 50 == 0:
            print(line(report.record.step + 1, report.watched), flush=True)
    print(f"{time.perf_counter() - start:.0f} seconds")
    found = series(run.folder / "watches.jsonl")
    print("\n".join(summary(found)))
    draw(found, given.figure or run.folder / "induction.png")


def line(step: int, watched: Mapping[str, Mapping[str, float]]) -> str:
    """The loss on the second copy, and every head's two scores."""
    loss = watched["induction"]["loss"]
    heads = [name for name in watched["induction"] if name not in NO_HEADS]
    parts = (f"{name} {watched['induction'][name]:.2f}/{watched['previous'][name]:.2f}" for name in heads)
    return f"step {step:>5}   loss on the second copy {loss:.3f}   head induction/previous   {'   '.join(parts)}"


def summary(found: dict[str, Series]) -> list[str]:
    """When heads form, and what they reach."""
    lines = []
    for name in SCORES:
        null = found[name]["chance"][-1][1]
        for head, points in found[name].items():
            if head not in NO_HEADS:
                crossed = next((step for step, score in points if score > 0.5), None)
                when = "never above 0.5" if crossed is None else f"above 0.5 from step {crossed}"
                lines.append(f"{name:<10} {head}: {points[-1][1]:.3f} at the end, {when}; {null:.3f} by chance")
    loss = found["induction"]["loss"]
    falls = [(earlier[1] - later[1], earlier[0], later[0]) for earlier, later in zip(loss, loss[5:], strict=False)]
    fall, first, last = max(falls, key=lambda found: found[0])
    return [
        *lines,
        f"loss on the second copy: {loss[-1][1]:.3f} at the end; falls by {fall:.2f} in steps {first}-{last}",
    ]


def draw(found: dict[str, Series], picture: Path) -> None:
    """Loss on the second copy above, head scores below, against steps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 8), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    loss, *scores = figure.subplots(3, 1, sharex=True)
    loss.plot(*zip(*found["induction"]["loss"], strict=True), color="black")
    loss.set_ylabel("loss on the second copy\n(nats a token)")
    for axes, name in zip(scores, SCORES, strict=True):
        for head, points in found[name].items():
            if head not in NO_HEADS:
                style = "-" if head.startswith("1.") else "--"
                axes.plot(*zip(*points, strict=True), style, label=f"layer {head[0]}, head {head[2]}")
        null = found[name]["chance"]
        axes.plot(*zip(*null, strict=True), ":", color="grey", linewidth=0.8, label="uniform attention")
        axes.set_ylabel("induction score" if name == "induction" else "previous-token score")
        axes.set_ylim(0, 1)
        axes.legend(fontsize=8)
    scores[-1].set_xlabel("step")
    canvas.print_figure(picture, format="png", dpi=110)


if __name__ == "__main__":
    main()

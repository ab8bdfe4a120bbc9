"""The gradient of a logit at every state of the stream, beside our own forward pass and autograd with its graph kept.

    python bench/gradients.py [--rounds 9] [--out bench/gradients.md]

Random weights of GPT-2 small's shape, T = 512, fp32. Times are medians over rounds in which all run in turn. Memory is
the highest that a process came to, over what it had before with the weights in it; each work runs in a process of its
own for that.
"""

import argparse
import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from timing import Times, side_by_side

from pellucid.inside.metrics import logit
from pellucid.inside.trace import attached, trace
from pellucid.model.config import Config
from pellucid.model.transformer import Transformer

LENGTH = 512
FORWARD, LOCAL, HAD, KEPT = "forward, all logits", "trace and gradients", "gradients of a trace", "graph kept"


def build() -> tuple[Transformer, torch.Tensor]:
    torch.manual_seed(0)
    model = Transformer(Config(50257, 1024, 12, 768, 12)).eval().requires_grad_(False)
    return model, torch.randint(0, 50257, (1, LENGTH))


def works(model: Transformer, ids: torch.Tensor) -> dict[str, Callable[[], object]]:
    """What is compared; each gives back what the user then holds."""
    metric = logit(11)

    def forward() -> object:
        with torch.no_grad():
            return model(ids)

    def kept_graph() -> object:
        found = attached(model, ids)
        return torch.autograd.grad(metric.of(found).sum(), found.states)

    had = trace(model, ids)
    return {
        FORWARD: forward,
        LOCAL: lambda: trace(model, ids).gradient(metric),
        HAD: lambda: had.gradient(metric),
        KEPT: kept_graph,
    }


def check(model: Transformer, ids: torch.Tensor) -> float:
    """The largest difference of the two ways to the same gradients, relative to their size, over all states."""
    ours, theirs = works(model, ids)[LOCAL](), works(model, ids)[KEPT]()
    pairs = zip(ours.states, theirs, strict=True)  # pyright: ignore
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)


def added(name: str) -> float:
    """Megabytes that one work needs at its highest, in this process."""
    model, ids = build()
    work = works(model, ids)[name]
    with torch.no_grad():
        model(ids[:, :8])  # what the first kernel of all sets up is none of the work's
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts here
    before = status("VmRSS")
    held = work()
    peak = status("VmHWM") - before
    del held
    return peak / 1000


def status(field: str) -> int:
    """Kilobytes, as the kernel counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def in_a_process(name: str) -> float:
    done = subprocess.run([sys.executable, __file__, "--memory", name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout)


def table(times: Times, memory: dict[str, float], weights: float) -> str:
    lines = ["| work | ms (range) | times the forward | MB added | with the weights, times the forward |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for name in memory:
        spent = [1e3 * each for each in times.seconds[name]]
        time = f"{1e3 * times.median(name):.0f} ({min(spent):.0f}-{max(spent):.0f})"
        ratio = (weights + memory[name]) / (weights + memory[FORWARD])
        lines.append(f"| {name} | {time} | {times.ratio(FORWARD, name):.2f} | {memory[name]:.0f} | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "gradients.md")
    options.add_argument("--memory", choices=(FORWARD, LOCAL, HAD, KEPT), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.memory:
        print(added(given.memory))
        return
    memory = {name: in_a_process(name) for name in (FORWARD, LOCAL, HAD, KEPT)}
    model, ids = build()
    difference = check(model, ids)
    times = side_by_side(works(model, ids), given.rounds)
    weights = sum(weight.nbytes for weight in model.parameters()) / 1e6
    text = (
        f"# Gradients at every state of the stream\n\n{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} "
        f"cores, Python {platform.python_version()}, torch {torch.__version__}, {torch.get_num_threads()} threads.\n"
        f"`python bench/gradients.py` makes this file. GPT-2 small's shape ({weights:.0f} MB), T = {LENGTH}, "
        f"fp32,\n{given.rounds} rounds; the metric is one logit. Both ways give the same gradients to {difference:.0e} "
        f"of their size.\n\n{table(times, memory, weights)}\n"
    )
    given.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()

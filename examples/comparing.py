"""What the two comparisons share: each variant is trained with several seeds on sources of Python's own library, and
set beside the others with the seeds' spread. Text, batches of a seed and validation data are the same for all."""

import argparse
import statistics
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from pellucid.training.journal import read_journal
from pellucid.training.run import Run
from pellucid.training.settings import read_run, run_from

BATCHES = {"rows": 8, "length": 64, "validation": 0.02}
QUIET = {
    "evaluate": {"rows": 32, "batches": 8},
    "sample": {"every": 0},
    "save": {"every": 100_000},
    "log": {"curve": False},
}
Curve = list[tuple[int, float]]  # (steps taken, validation loss)


def options(about: str | None, folder: str, steps: int) -> argparse.Namespace:
    """The arguments of a comparison."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(folder))
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--figure", type=Path)
    return parser.parse_args()


def compare(given: argparse.Namespace, common: Mapping[str, Any], variants: Mapping[str, Mapping[str, Any]]) -> None:
    """Train all, print the table, draw the figure. A run that is there already is read, or gone on with."""
    torch.set_num_threads(1)  # the matrices are so small that more threads only wait for one another
    curves: dict[str, list[Curve]] = {name: [] for name in variants}
    tokens, start = "", time.perf_counter()
    sources = sorted(map(str, Path(sysconfig.get_paths()["stdlib"]).glob("*.py")))
    for seed in range(given.seeds):
        for name, changes in variants.items():
            folder = given.folder / f"{name.replace(' ', '-')}-{seed}"
            values = merged(QUIET, common, changes, {"folder": str(folder), "steps": given.steps, "seed": seed})
            values["data"] = BATCHES | ({"tokens": tokens} if tokens else {"text": sources})
            trained(values, folder)
            tokens = tokens or str(folder / "data.tokens")
            curves[name].append(curve(folder))
            print(f"seed {seed}   {name:<24} validation {curves[name][-1][-1][1]:.4f}", flush=True)
    print(f"{time.perf_counter() - start:.0f} seconds\n")
    print(table(curves))
    draw(curves, given.figure or given.folder / "comparison.png")


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Settings whose tables are put together, later ones first."""
    found: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            found[key] = {**found.get(key, {}), **value} if isinstance(value, Mapping) else value
    return found


def trained(values: dict[str, Any], folder: Path) -> None:
    there = (folder / "run.json").exists()
    settings = read_run(folder) if there else run_from(values, str(folder))
    assert not there or asdict(settings)["steps"] == values["steps"], f"{folder} holds a run of another length"
    for _ in Run(settings, resume=there):
        pass


def curve(folder: Path) -> Curve:
    lines = read_journal(folder / "metrics.jsonl")
    return [(line["step"] + 1, line["validation"]) for line in lines if line.get("validation") is not None]


def table(curves: Mapping[str, list[Curve]]) -> str:
    """The last validation loss of each variant: mean, standard deviation and each seed; as Markdown."""
    rows = ["| variant | validation loss, mean | sd | seeds |", "| --- | --- | --- | --- |"]
    for name, found in curves.items():
        last = [each[-1][1] for each in found]
        sd = statistics.stdev(last) if len(last) > 1 else 0.0
        rows.append(f"| {name} | {statistics.mean(last):.3f} | {sd:.3f} | {', '.join(f'{x:.3f}' for x in last)} |")
    return "\n".join(rows)


def draw(curves: Mapping[str, list[Curve]], picture: Path) -> None:
    """The mean over the seeds as a line, from the least to the greatest as a band."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    canvas, axes = FigureCanvasAgg(figure), figure.subplots()
    for name, found in curves.items():
        steps = [step for step, _ in found[0]]
        losses = [[value for _, value in points] for points in found]
        by_step = list(zip(*losses, strict=True))
        (line,) = axes.plot(steps, [statistics.mean(values) for values in by_step], label=name)
        axes.fill_between(steps, list(map(min, by_step)), list(map(max, by_step)), color=line.get_color(), alpha=0.2)
    axes.set_xlabel("step")
    axes.set_ylabel("validation loss (nats a character)")
    axes.legend()
    picture.parent.mkdir(parents=True, exist_ok=True)
    canvas.print_figure(picture, format="png", dpi=110)

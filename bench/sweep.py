"""Activation patching beside TransformerLens and beside our own full reruns, on random weights of GPT-2 small's shape.

    python bench/sweep.py [--rounds 3] [--long] [--out bench/sweep.md]

A pair of texts whose first difference lies at a third of their length; every stream state before a layer at every
position, and every head at all positions. Work that takes minutes (one full run for every edit) is timed on a sample of
the edits, spread over them all, and scaled up; every edit takes the same time there. Ratios are medians of the rounds'
own, above 1 where Pellucid is quicker. `--long` takes T = 128 in as well.
"""

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path

import torch
from contenders import SHAPE, Contenders, contenders
from run import heading, table

from pellucid.inside.metrics import logit
from pellucid.inside.sweep import sweep
from pellucid.inside.sweep_work import SweepOptions
from pellucid.inside.trace import trace
from pellucid.model.place import columns

LAYERS, HEADS = SHAPE["n_layer"], SHAPE["n_head"]
TOKEN, MINUS = 1000, 2000
SAMPLE = 16  # edits of a sample
Edit = tuple[int, int]  # layer and position, or layer and head
Edits = Sequence[Edit]
Row = tuple[str, ...]


class Bench:
    """One pair of texts in each library, and every way to sweep over it."""

    def __init__(self, found: Contenders, length: int):
        generator = torch.Generator().manual_seed(length)
        self.ids = torch.randint(0, SHAPE["vocab_size"], (1, length), generator=generator)
        source = self.ids.clone()
        source[0, length // 3 :] = torch.randint(0, SHAPE["vocab_size"], (1, length - length // 3), generator=generator)
        self.length, self.found = length, found
        self.base, self.source = trace(found.pellucid.transformer, self.ids), trace(found.pellucid.transformer, source)
        _, self.cache = found.transformer_lens.run_with_cache(source)

    def ours(self, sites: str, skip: bool) -> torch.Tensor:
        """Our sweep; logits at the metric's position alone."""
        options = SweepOptions(skip=skip, normalised=False)
        return sweep(self.base, self.source, sites, metric=logit(TOKEN, MINUS), options=options).values

    def full(self, site: str, edits: Edits) -> list[float]:
        """Our own model run from its start for every edit, with fused attention; logits at the last position alone."""
        return [float(each) for edit in edits for each in self._full_run(site, edit)]

    def _full_run(self, site: str, edit: Edit) -> torch.Tensor:
        transformer, layer, at = self.base.transformer, *edit
        name = f"{layer}.{site}"
        value = self.source.states[2 * layer] if site == "stream" else self.values[layer]

        def look(now: torch.Tensor, *_: object) -> torch.Tensor:
            now = now.clone()
            if site == "stream":
                now[:, at] = value[:, at]
            else:
                now[:, :, at] = value[:, :, at]
            return now

        here = transformer.begin(self.ids, looks={name: look})
        x = transformer.run(transformer.embed(self.ids, here), here)
        here = type(here)(columns(here.place, [self.length - 1]))
        return difference(transformer.logits(x[:, -1:], here))

    @cached_property
    def values(self) -> list[torch.Tensor]:
        """The heads of the other text, layer by layer."""
        return [self.source[f"{layer}.attention.heads"] for layer in range(LAYERS)]

    def lens(self, site: str, edits: Edits) -> list[float]:
        """TransformerLens, one edit at a time: a hook for each; it computes all logits."""
        return [float(each) for edit in edits for each in self._hooked(site, [edit])]

    def lens_batched(self, site: str, edits: Edits) -> list[float]:
        """The same with a layer's edits as rows of one batch, which its user arranges; it computes all logits."""
        found: list[float] = []
        for layer in dict.fromkeys(layer for layer, _ in edits):
            found += self._hooked(site, [edit for edit in edits if edit[0] == layer]).tolist()
        return found

    def _hooked(self, site: str, edits: Edits) -> torch.Tensor:
        name = f"blocks.{edits[0][0]}.{'hook_resid_pre' if site == 'stream' else 'attn.hook_z'}"
        value = self.cache[name]

        def hook(now: torch.Tensor, hook: object) -> torch.Tensor:
            now = now.clone()
            for row, (_, at) in enumerate(edits):
                if site == "stream":
                    now[row, at] = value[0, at]
                else:
                    now[row, :, at] = value[0, :, at]
            return now

        model = self.found.transformer_lens
        return difference(model.run_with_hooks(self.ids.expand(len(edits), -1), fwd_hooks=[(name, hook)]))


def difference(logits: torch.Tensor) -> torch.Tensor:
    """The metric: how far one token lies above another after the last position."""
    return logits[:, -1, TOKEN] - logits[:, -1, MINUS]


def works(bench: Bench, site: str, beside_others: bool) -> dict[str, tuple[Callable[[], object], float]]:
    """Every way to do one sweep, and by how much its time is scaled."""
    every = bench.length if site == "stream" else HEADS
    edits = [(layer, at) for layer in range(LAYERS) for at in range(every)]
    some = edits[:: max(1, len(edits) // SAMPLE)]
    by_layer = [edit for edit in edits if edit[0] in (1, LAYERS - 2)]
    pattern = f"0-{LAYERS - 1}.{site}"
    found: dict[str, tuple[Callable[[], object], float]] = {
        "ours": (partial(bench.ours, pattern, False), 1.0),
        "ours, no-ops skipped": (partial(bench.ours, pattern, True), 1.0),
        "our own full reruns": (partial(bench.full, site, some), len(edits) / len(some)),
    }
    if beside_others:
        found["TransformerLens, one edit at a time"] = partial(bench.lens, site, some), len(edits) / len(some)
        batched = partial(bench.lens_batched, site, by_layer)
        found["TransformerLens, a layer's edits as one batch"] = batched, len(edits) / len(by_layer)
    return found


def measured(bench: Bench, site: str, rounds: int, beside_others: bool) -> list[Row]:
    """Seconds of every way, and how much quicker ours are. One round more does not count, where there are several."""
    ways = works(bench, site, beside_others)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    warmups = 1 if rounds > 1 else 0
    for number in range(warmups + rounds):
        for name, (work, scale) in ways.items():
            gc.collect()
            start = time.perf_counter()
            work()
            seconds[name] += [(time.perf_counter() - start) * scale] if number >= warmups else []
    what = "stream, layer x position" if site == "stream" else "heads, all positions"
    rows = []
    for name, spent in seconds.items():
        ratios = [
            statistics.median(one / other for one, other in zip(spent, seconds[ours], strict=True))
            for ours in ("ours", "ours, no-ops skipped")
        ]
        rows.append(
            (f"{what}, T = {bench.length}", name, f"{statistics.median(spent):.2f}", *(f"{r:.1f}" for r in ratios))
        )
    return rows


def check(bench: Bench) -> str:
    """All ways find the same values: the largest difference, relative to the metric's spread."""
    worst = {}
    for site in ("stream", "attention.heads"):
        every = bench.length if site == "stream" else HEADS
        edits = [(layer, at) for layer in range(LAYERS) for at in range(every)][:: max(1, LAYERS * every // 8)]
        ours = bench.ours(f"0-{LAYERS - 1}.{site}", skip=False)
        mine = torch.tensor([float(ours[edit]) for edit in edits])
        for name, way in (
            ("our full reruns", bench.full),
            ("TransformerLens", bench.lens),
            ("its batches", bench.lens_batched),
        ):
            gap = float((torch.tensor(way(site, edits)) - mine).abs().max() / ours.abs().max())
            worst[name] = max(worst.get(name, 0.0), gap)
    return ", ".join(f"{name} {gap:.1e}" for name, gap in worst.items())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--long", action="store_true")
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "sweep.md")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        found = contenders(Path(folder))
        bench, rows = Bench(found, 32), []
        text = heading(found).partition("`make bench`")[0].replace("# Benchmarks", "# Sweeps", 1)
        text += NOTES.format(gaps=check(bench))
        for site in ("stream", "attention.heads"):
            rows += measured(bench, site, given.rounds, beside_others=True)
        if given.long:
            rows += measured(Bench(found, 128), "stream", 1, beside_others=False)
        text += "\n" + table(("work", "way", "seconds", "ours is quicker by", "no-ops skipped, by"), rows) + "\n"
    given.out.write_text(text)
    print(text)


NOTES = """\
Made by `python bench/sweep.py`. Edits: 12 x T of the stream before each layer, or 144 heads at all positions; the first
difference of the two texts lies at T / 3. Ours and our full reruns compute the logits that the metric reads and no
others; TransformerLens computes those of all positions. Where every edit is a run of its own, a sample of edits was
timed and scaled up. The values found differ from ours, relative to scale, by: {gaps}.
"""


if __name__ == "__main__":
    main()

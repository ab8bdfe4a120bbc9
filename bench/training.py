"""Training beside a plain PyTorch loop on transformers' GPT-2, from the same weights on the same tokens, in fp32.

    python bench/training.py [--out bench/training.md]

Two settings: a small model of characters, and GPT-2 small. Steps are timed in rounds in which both take turns; ratios
are medians of the rounds' own. Memory is what a process of its own grows by from before the model is made to its peak.
Steps are whole ones: batch, loss, gradients, clipping, AdamW, the loss as a number.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from report import processor, table
from timing import side_by_side

from pellucid.training.batch import Batch
from pellucid.training.loop import train
from pellucid.training.objectives import next_token
from pellucid.training.optimizers import optimizer_of
from pellucid.training.schedules import Constant
from pellucid.weights.loading import load_checkpoint

RATE, CLIP, BETAS, DECAY = 1e-3, 1.0, (0.9, 0.95), 0.1
Steps = Callable[[int], list[float]]  # so many steps -> their losses


@dataclass(frozen=True)
class Setting:
    """A shape, a batch, and how many steps are timed."""

    name: str
    shape: dict[str, int]
    rows: int
    length: int
    steps: int  # in a round
    rounds: int

    def batches(self) -> Iterator[Batch]:
        """Random tokens, the same for both."""
        draw = torch.Generator().manual_seed(0)
        while True:
            ids = torch.randint(0, self.shape["vocab_size"], (self.rows, self.length + 1), generator=draw)
            yield Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())


SETTINGS = {
    "small": Setting(
        "4 layers, 4 heads, width 128, 65 characters, B 12, T 64",
        {"vocab_size": 65, "n_positions": 64, "n_embd": 128, "n_layer": 4, "n_head": 4}, 12, 64, 10, 11,
    ),
    "gpt2": Setting(
        "GPT-2 small, B 4, T 256",
        {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}, 4, 256, 1, 3,
    ),
}  # fmt: skip


def theirs(setting: Setting, folder: Path) -> Steps:
    """The loop as it is written without a library for it."""
    model, data = transformers.GPT2LMHeadModel.from_pretrained(folder).train(), setting.batches()
    groups = [
        {"params": [w for w in model.parameters() if w.dim() >= 2], "weight_decay": DECAY},
        {"params": [w for w in model.parameters() if w.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS)

    def steps(count: int) -> list[float]:
        losses = []
        for _ in range(count):
            batch = next(data)
            logits = model(batch.ids, use_cache=False).logits
            loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), batch.targets.view(-1))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            losses.append(loss.item())
        return losses

    return steps


def ours(setting: Setting, folder: Path) -> Steps:
    """The loop that `pellucid train` runs."""
    transformer = load_checkpoint(folder).transformer.requires_grad_(True)
    weights = transformer.state_dict().items()
    # As a new model has them: no file behind weights that change, and not in the order of a file.
    own = {name: weight.clone(memory_format=torch.contiguous_format) for name, weight in weights}
    transformer.load_state_dict(own, assign=True)
    records = train(transformer, setting.batches(), next_token, optimizer_of(transformer), Constant(RATE))
    return lambda count: [next(records).loss or float("nan") for _ in range(count)]


CONTENDERS = {"ours": ours, "theirs": theirs}


def write_weights(setting: Setting, folder: Path) -> Path:
    torch.manual_seed(0)
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**setting.shape, **off))
    model.save_pretrained(folder)
    return folder


def grown(side: str, name: str, folder: Path) -> float:
    """Megabytes that a process of its own grows by, from before it makes the model to its peak in two steps."""
    program = [sys.executable, __file__, "--grow", side, "--setting", name, "--weights", str(folder)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])["kilobytes"] / 1000


def grow(side: str, name: str, folder: Path) -> None:
    """What `grown` runs."""
    setting = SETTINGS[name]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    CONTENDERS[side](setting, folder)(2)
    print(json.dumps({"kilobytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before}))


def compared(name: str, folder: Path) -> tuple[str, ...]:
    """A row of the results: tokens a second, ratio, memory, and how far the losses are apart."""
    setting = SETTINGS[name]
    write_weights(setting, folder)
    memory = {side: grown(side, name, folder) for side in CONTENDERS}
    losses: dict[str, list[float]] = {side: [] for side in CONTENDERS}
    loops = {side: make(setting, folder) for side, make in CONTENDERS.items()}

    def work(side: str) -> Callable[[], object]:
        return lambda: losses[side].extend(loops[side](setting.steps))

    times = side_by_side({side: work(side) for side in CONTENDERS}, setting.rounds, warmups=1)
    tokens = setting.rows * setting.length * setting.steps
    apart = max(abs(mine - other) for mine, other in zip(losses["ours"], losses["theirs"], strict=True))
    speeds = (f"{tokens / times.median(side):,.0f}" for side in CONTENDERS)
    return (
        setting.name, *speeds, f"{times.ratio('ours', 'theirs'):.2f}",
        *(f"{memory[side]:,.0f}" for side in CONTENDERS), f"{apart:.0e}",
    )  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "training.md")
    options.add_argument("--setting", choices=SETTINGS, help="this one alone")
    options.add_argument("--grow", choices=CONTENDERS, help=argparse.SUPPRESS)
    options.add_argument("--weights", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.grow:
        grow(given.grow, given.setting, given.weights)
        return
    rows = []
    for name in [given.setting] if given.setting else SETTINGS:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(compared(name, Path(folder)))
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers"))
    columns = ("setting", "ours, tokens/s", "theirs, tokens/s", "ratio", "ours, MB", "theirs, MB", "losses apart")
    text = (
        f"# Training\n\n{datetime.date.today()}, {processor()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, {versions}, fp32, {torch.get_num_threads()} threads.\n\n"
        "Ours is the loop of `pellucid train`, theirs a plain PyTorch loop on `transformers`' GPT-2 with torch's\n"
        "AdamW as it comes, both from one set of weights on the same tokens. The ratio is above 1 where Pellucid is\n"
        "quicker; memory is what a process grows by to its peak, weights, gradients and AdamW's state included.\n\n"
        f"{table(columns, rows)}\n"
    )
    given.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()

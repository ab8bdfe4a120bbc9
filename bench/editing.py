"""What it costs to read or edit one site while SmolLM2 writes, beside writing alone.

    python bench/editing.py [--rounds 15] [--out bench/editing.md]

Greedy, from one short prompt, with the cache. The ratios are medians of the rounds' own, in which all run in turn.
"""

import argparse
import datetime
import os
import platform
from collections.abc import Callable
from pathlib import Path

import torch
from report import processor, table
from timing import side_by_side

import pellucid as pl
from pellucid.generation.decode import Watch
from pellucid.generation.generate import generate
from pellucid.generation.sampling import Sampling

TOKENS = 48
PROMPT = "The capital of France is"
PLAIN = "writing alone"


def works(model: pl.Model) -> dict[str, Callable[[], object]]:
    """Each writes TOKENS tokens; all but the first look at, or change, one site at every one of them."""
    ids, kept = model.encode(PROMPT), []

    def keep(value: torch.Tensor, *_: object) -> torch.Tensor:
        kept.append(value)
        return value

    def reading() -> object:
        kept.clear()
        settings = Sampling(max_new_tokens=TOKENS, min_new_tokens=TOKENS, temperature=0)
        return generate(model.transformer, None, [ids], settings, Watch({"15.stream": keep}))

    def writing(edited: pl.Model) -> Callable[[], object]:
        return lambda: edited.generate(ids, max_new_tokens=TOKENS, min_new_tokens=TOKENS, temperature=0)

    direction = torch.full((model.config.d_model,), 0.01)
    return {
        PLAIN: writing(model),
        "a state is read": reading,
        "a vector is added to a state": writing(model.edited(pl.add("15.stream", direction))),
        "a head is switched off": writing(model.edited(pl.zero("15.attention.heads", head=4))),
        "an update is doubled": writing(model.edited(pl.scale("15.ffn.update", 2.0))),
        "a key is hidden from a head": writing(model.edited(pl.knockout("15.attention.scores", key=0, head=4))),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "editing.md")
    given = options.parse_args()
    times = side_by_side(works(pl.load("smollm2")), given.rounds)
    rows = [
        (name, f"{1e3 * times.median(name) / TOKENS:.1f}", f"{100 * (times.ratio(PLAIN, name) - 1):+.1f}%")
        for name in times.seconds
    ]
    text = (
        f"# One site, while the model writes\n\n{datetime.date.today()}, {processor()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, torch {torch.__version__}, fp32, {torch.get_num_threads()} threads.\n"
        f"Made by `python bench/editing.py`: SmolLM2-135M, {TOKENS} tokens after {PROMPT!r}, {given.rounds} rounds.\n\n"
        f"{table(('work', 'ms a token', 'more than alone'), rows)}\n"
    )
    given.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()

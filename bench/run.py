"""Pellucid beside other libraries on one set of random weights of GPT-2 small's shape, and on SmolLM2.

    python bench/run.py [--rounds 9] [--out bench/results.md]

Every figure is a median over rounds in which all contenders run in turn; ratios are medians of the rounds' own ratios,
above 1 where Pellucid is quicker. The results file says machine, versions and date.
"""

import argparse
import datetime
import importlib.metadata
import os
import platform
import tempfile
from pathlib import Path

import nnsight
import torch
from contenders import Contenders, check, contenders
from report import Row, processor, table
from timing import Times, side_by_side
from trace_memory import memory_rows

from pellucid.inside.trace import trace


def forward_rows(found: Contenders, rounds: int) -> list[Row]:
    """A forward pass with all logits, fp32."""
    ours, rows = found.pellucid.transformer, []
    for length in (8, 64, 512):
        ids = ids_of(length)
        times = side_by_side(
            {"ours": lambda ids=ids: ours(ids), "theirs": lambda ids=ids: found.hugging_face(ids)}, rounds
        )
        rows.append(row(f"forward, T = {length}", "Hugging Face (SDPA)", times))
    return rows


def decode_rows(found: Contenders, rounds: int) -> list[Row]:
    """Greedy decoding of one stream with a cache: 32 tokens after a prompt of 16."""
    ids = ids_of(16)
    options = {"do_sample": False, "max_new_tokens": 32, "min_new_tokens": 32, "pad_token_id": 0}
    times = side_by_side(
        {
            "ours": lambda: found.pellucid.generate(ids[0].tolist(), max_new_tokens=32),
            "theirs": lambda: found.hugging_face.generate(ids, attention_mask=torch.ones_like(ids), **options),
        },
        rounds,
    )
    return [row("decode 32 tokens after 16", "Hugging Face generate", times)]


def trace_rows(found: Contenders, rounds: int) -> list[Row]:
    """A trace beside our own pass, and beside caches of everything."""
    ours, rows = found.pellucid.transformer, []
    for length in (64, 512, 1024):
        ids = ids_of(length)

        def stack(ids: torch.Tensor = ids) -> torch.Tensor:
            here = ours.begin(ids)
            return ours.run(ours.embed(ids, here), here)

        def traced(ids: torch.Tensor = ids) -> object:
            return trace(ours, ids)

        times = side_by_side({"ours": traced, "theirs": stack}, rounds)
        rows.append(row(f"trace, T = {length}, no logits", "our own stack, no logits", times))
        if length == 1024:
            continue
        times = side_by_side(
            {"ours": lambda ids=ids: trace(ours, ids)["logits"], "theirs": lambda ids=ids: ours(ids)}, rounds
        )
        rows.append(row(f"trace with logits, T = {length}", "our own forward", times))
        for name, cache_all in cachers(found, ids).items():
            times = side_by_side(
                {"ours": lambda ids=ids: trace(ours, ids)["logits"], "theirs": cache_all}, max(3, rounds // 2)
            )
            rows.append(row(f"trace with logits, T = {length}", name, times))
    return rows


def cachers(found: Contenders, ids: torch.Tensor) -> dict[str, object]:
    """What each library does to have everything readable afterwards."""
    works: dict[str, object] = {
        "Hugging Face, hidden states and attentions": lambda: found.hugging_face_eager(
            ids, output_hidden_states=True, output_attentions=True
        )
    }
    works["TransformerLens run_with_cache"] = lambda: found.transformer_lens.run_with_cache(ids)
    works["nnsight, every module's output saved"] = lambda: save_everything(found.nnsight, ids)
    return works


def save_everything(model: object, ids: torch.Tensor) -> list[object]:
    """nnsight's own way to keep values: ask for the outputs inside its tracing context."""
    with model.trace(ids):  # pyright: ignore
        saved = nnsight.save([])
        for block in model.transformer.h:  # pyright: ignore
            saved.append(block.attn.output)
            saved.append(block.mlp.output)
            saved.append(block.output)
        saved.append(model.output)  # pyright: ignore
    return saved


def ids_of(length: int) -> torch.Tensor:
    return torch.randint(0, 50257, (1, length), generator=torch.Generator().manual_seed(length))


def row(work: str, against: str, times: Times) -> Row:
    ours, theirs = times.median("ours"), times.median("theirs")
    spread = f"{min(times.seconds['ours']) * 1e3:.0f}-{max(times.seconds['ours']) * 1e3:.0f}"
    return work, against, f"{ours * 1e3:.1f} ({spread})", f"{theirs * 1e3:.1f}", f"{times.ratio('ours', 'theirs'):.2f}"


def heading(found: Contenders) -> str:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in installed())
    differences = ", ".join(f"{name} {value:.1e}" for name, value in check(found).items())
    return (
        f"# Benchmarks\n\n{datetime.date.today()}, {processor()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, {versions}, fp32, {torch.get_num_threads()} threads.\n"
        f"`make bench` makes this file. Logits of the others differ from ours, relative to scale, by: {differences}.\n"
        "\nMilliseconds are medians (with the range of ours); the ratio is the median of the rounds' ratios, above 1\n"
        "where Pellucid is quicker.\n"
    )


def installed() -> list[str]:
    names = ("torch", "transformers", "transformer-lens", "nnsight")
    known = {dist.metadata["Name"].lower().replace("_", "-") for dist in importlib.metadata.distributions()}
    return [name for name in names if name in known]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "results.md")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        found = contenders(Path(folder))
        text = heading(found)
        timed = [row for part in (forward_rows, decode_rows, trace_rows) for row in part(found, given.rounds)]
        text += "\n" + table(("work", "against", "ours, ms", "theirs, ms", "ratio"), timed)
        text += "\n\n" + table(("held after", "bytes", "times ours"), memory_rows(found)) + "\n"
    given.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()

"""What Pellucid exports, opened by others: folders in transformers 4.57, .gguf files in llama.cpp.

    python bench/exports.py [--transformers4 PYTHON] [--llama-cpp PYTHON] [--out bench/exports.md]

Each is an interpreter that has the library: `pip install torch "transformers>=4.57,<5"` in one environment,
`pip install llama-cpp-python` (which compiles for half an hour) in one, or both in the same. The results file keeps
the part of an interpreter that is not given. Weights are tiny random ones of every family, and SmolLM2's.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from exported import IDS, families, vocabularies

import pellucid
from pellucid.front import Model
from pellucid.weights.gguf_saving import save_gguf
from pellucid.weights.saving import save_checkpoint

HERE = Path(__file__).parent
TEXTS = [
    "", " ", "   ", "\n", "Hello, world!", "a  1  b12 345\n\n 6", "I'LL say she's HE'S won't 'tis",
    "price: $1,234.56 (+7%) ^^ `x` ~~ <=> |", "tab\t\tand\r\n\r\n  indented\n    code = {'k': [1, 2]}  # end  ",
    "naïve e\u0301a\u0300 ½²٣ Ⅷ10", "日本語 テキスト、한국어 12 мир", "👩‍👧 \u200b\u00a0\u2003x", "==>>--..!!??  …",
    "the <|im_start|> of <|endoftext|></s><s>[MASK]", "▁a ▁▁ b", "aaaa" * 40,
]  # fmt: skip
PROMPT = "The capital of France is"
TOKENS = 24
TALK = [{"role": "user", "content": "What is 2 + 2?"}]
Row = tuple[str, ...]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--transformers4", type=Path)
    options.add_argument("--llama-cpp", type=Path)
    options.add_argument("--out", type=Path, default=HERE / "exports.md")
    given = options.parse_args()
    torch.set_num_threads(1)
    wanted = {"transformers 4.57": (in_transformers, given.transformers4), "llama.cpp": (in_llama_cpp, given.llama_cpp)}
    sections = sections_of(given.out)
    for title, (part, python) in wanted.items():
        if python is not None:
            with tempfile.TemporaryDirectory() as work, torch.no_grad():
                sections[title] = part(python, Path(work))
    heading = "# Exports, opened by others\n\n`bench/exports.py` makes this file.\n"
    given.out.write_text("\n".join([heading, *(f"## In {title}\n\n{text}" for title, text in sections.items())]))
    print(given.out.read_text())


# --- transformers ---


def in_transformers(python: Path, work: Path) -> str:
    """Folders of every family and of SmolLM2, with the logits that each gives there and here."""
    smollm2 = pellucid.load("smollm2")
    models = {**families(), "SmolLM2": smollm2.transformer}
    folders = {name: f"folder_{n}" for n, name in enumerate(models)}
    for name, folder in folders.items():
        files = smollm2.tokenizer.to_files() if name == "SmolLM2" else {}
        save_checkpoint(work / folder, models[name], beside=files)
    np.save(work / "ids.npy", IDS.numpy())
    said = asked(python, "in_transformers.py", work, {"folders": list(folders.values()), "texts": TEXTS})
    rows = []
    for name, folder in folders.items():
        faults, layout = said[folder]["faults"], json.loads((work / folder / "config.json").read_text())["model_type"]
        found = difference(logits_of(models[name]), np.load(work / f"{folder}.npy"))
        rows.append((name, layout, found, json.dumps(faults) if faults else "none"))
    words, theirs = [smollm2.tokenizer.encode(text) for text in TEXTS], said[folders["SmolLM2"]]
    same = sum(one == other for one, other in zip(words, theirs["ids"], strict=True))
    chat = smollm2.tokenizer.chat_template.render(TALK) == theirs["chat"]
    return (
        f"{about(said['versions'])}\n\nfp32; differences of logits are relative to the largest.\n\n"
        + table(("model", "layout", "largest difference of logits", "weights missing or left over"), rows)
        + f"\n\nSmolLM2's tokenizer, out of its .gguf file and read by AutoTokenizer: {same} of {len(TEXTS)} texts "
        f"have equal ids, its chat template {'writes the same' if chat else 'WRITES SOMETHING ELSE'}.\n"
    )


def logits_of(model: Any) -> np.ndarray:
    if model.encoder is not None:
        return model(IDS[:, :5], source=IDS).numpy()
    return model(IDS).numpy()


# --- llama.cpp ---


def in_llama_cpp(python: Path, work: Path) -> str:
    """SmolLM2 in three types and tiny models of other kinds, and what each computes there and here from one file."""
    smollm2 = pellucid.load("smollm2")
    files = {f"SmolLM2-{type}.gguf": (smollm2.transformer, smollm2.tokenizer, type) for type in ("F32", "F16", "Q8_0")}
    files |= {f"{name}.gguf": (model, words, "F32") for name, (model, words) in vocabularies(work).items()}
    prompts = {}
    for name, (model, words, type) in files.items():
        save_gguf(work / name, model, type=type, metadata=words.to_gguf(model.config.vocab_size))
        prompts[name] = words.encode(PROMPT)
    job = {"files": list(files), "texts": TEXTS, "prompts": prompts, "tokens": TOKENS}
    said = asked(python, "in_llama_cpp.py", work, job)
    rows, spoken = [], []
    for name in files:
        row, text = compared(pellucid.load(str(work / name)), said[name], np.load(work / f"{name}.npy"), prompts[name])
        rows.append((name, f"{(work / name).stat().st_size / 1e6:.1f}", *row))
        spoken.append(f"- {name}: {text}")
    head = ("file", "MB", "texts with equal ids", "the same, control tokens found", "logits of the prompt", "greedy")
    return (
        f"{about(said['versions'])}\n\nBoth read the same file; keys and values are kept in fp32. Differences of "
        "logits are relative to the largest. Pellucid\ncomputes in fp32; llama.cpp rounds what it multiplies by F16 "
        "and Q8_0 weights to F16 and to eight bits.\n"
        f"Greedy: how many of {TOKENS} tokens are equal from the first on.\n\n"
        + table(head, rows)
        + f"\n\nAfter {PROMPT!r}:\n\n"
        + "\n".join(spoken)
        + "\n"
    )


def compared(model: Model, said: dict[str, Any], logits: np.ndarray, prompt: list[int]) -> tuple[Row, str]:
    words = model.tokenizer
    counts = [
        sum(words.encode(text, special=special) == ids for text, ids in zip(TEXTS, said[key], strict=True))
        for key, special in (("ids", False), ("special", True))
    ]
    # Greedy tokens are equal as far as, after each of theirs, ours would be the next of theirs: one pass tells.
    theirs = said["tokens"]
    mine = model.transformer(torch.tensor([prompt + theirs]))[0]
    best = mine[len(prompt) - 1 : -1].topk(2)
    pairs = zip(best.indices[:, 0].tolist(), theirs, strict=True)
    equal = next((n for n, (one, other) in enumerate(pairs) if one != other), TOKENS)
    greedy = f"{equal} of {TOKENS}"
    if equal < TOKENS:
        first, second = best.values[equal].tolist()
        greedy += f" (then our two best are {first - second:.4f} apart)"
    row = (*(f"{count} of {len(TEXTS)}" for count in counts), difference(mine[: len(prompt)].numpy(), logits), greedy)
    return row, "".join(words.labels(theirs))


# --- What both share ---


def asked(python: Path, script: str, work: Path, job: dict[str, Any]) -> dict[str, Any]:
    """What a script says that another interpreter runs."""
    (work / "job.json").write_text(json.dumps(job), encoding="utf-8")
    alone = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    subprocess.run([python, HERE / script, work], check=True, env=alone)
    return json.loads((work / "said.json").read_text(encoding="utf-8"))


def difference(ours: np.ndarray, theirs: np.ndarray) -> str:
    if ours.shape != theirs.shape:
        return f"SHAPES {ours.shape} AND {theirs.shape}"
    return f"{np.abs(ours - theirs).max() / np.abs(theirs).max():.1e}"


def about(versions: dict[str, str]) -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"{datetime.date.today()}, {named[0] if named else platform.processor()}, {os.cpu_count()} cores, 1 thread. "
        f"There: {found}.\nHere: Pellucid {pellucid.__version__}, torch {torch.__version__}."
    )


def table(columns: Row, rows: list[Row]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [columns, ("---",) * len(columns), *rows])


def sections_of(path: Path) -> dict[str, str]:
    """The parts of the results file that is there, by title."""
    parts = path.read_text(encoding="utf-8").split("\n## In ")[1:] if path.exists() else []
    return {title: text.rstrip("\n") + "\n" for title, _, text in (part.partition("\n\n") for part in parts)}


if __name__ == "__main__":
    main()

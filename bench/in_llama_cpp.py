"""Run by an interpreter that has llama-cpp-python: what llama.cpp makes of exported .gguf files.

    python in_llama_cpp.py WORK

WORK/job.json lists the files and holds the texts and the ids of a prompt. Logits of the prompt go to
WORK/<file>.npy, and WORK/said.json says the rest. Nothing of Pellucid is imported.
"""

import json
import sys
from itertools import islice
from pathlib import Path

import llama_cpp
import numpy as np

F32 = 0  # ggml's number for it: keys and values are kept as they are


def main() -> None:
    work = Path(sys.argv[1])
    job = json.loads((work / "job.json").read_text(encoding="utf-8"))
    said = {"versions": {"llama-cpp-python": llama_cpp.__version__}}
    for name in job["files"]:
        said[name] = read(work, name, job)
    (work / "said.json").write_text(json.dumps(said), encoding="utf-8")


def read(work: Path, name: str, job: dict) -> dict:
    """Load a file, save the logits of the prompt, and say the greedy tokens after it and the ids of the texts."""
    prompt = job["prompts"][name]
    length = len(prompt) + job["tokens"] + 1
    model = llama_cpp.Llama(
        str(work / name), n_ctx=length, n_threads=1, logits_all=True, type_k=F32, type_v=F32, verbose=False
    )
    ids = [model.tokenize(text.encode(), add_bos=True, special=False) for text in job["texts"]]
    special = [model.tokenize(text.encode(), add_bos=True, special=True) for text in job["texts"]]
    model.eval(prompt)
    np.save(work / f"{name}.npy", np.array(model.scores[: len(prompt)], dtype=np.float32))
    greedy = model.generate(prompt, temp=0.0, repeat_penalty=1.0, reset=True)
    return {"ids": ids, "special": special, "tokens": list(islice(greedy, job["tokens"]))}


if __name__ == "__main__":
    main()

"""Run by the interpreter of a release of transformers: what it makes of exported folders.

    python in_transformers.py WORK

WORK/job.json lists the folders and holds texts; WORK/ids.npy the token ids. Logits go to WORK/<folder>.npy, and
WORK/said.json says the rest. Nothing of Pellucid is imported.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    work = Path(sys.argv[1])
    job = json.loads((work / "job.json").read_text(encoding="utf-8"))
    ids = torch.tensor(np.load(work / "ids.npy"))
    said = {"versions": {"transformers": transformers.__version__, "torch": torch.__version__}}
    for name in job["folders"]:
        said[name] = read(work, name, ids, job["texts"])
    (work / "said.json").write_text(json.dumps(said), encoding="utf-8")


def read(work: Path, name: str, ids: torch.Tensor, texts: list[str]) -> dict:
    """Load a folder, save its logits, and say which weights were missing or left over, and the ids of the texts."""
    folder = work / name
    architecture = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    model, info = getattr(transformers, architecture).from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32
    )
    more = {"decoder_input_ids": ids[:, :5]} if model.config.is_encoder_decoder else {}
    logits = model.eval()(ids, **more, return_dict=True).to_tuple()[0]
    np.save(work / f"{name}.npy", logits.numpy())
    found = {"faults": {key: sorted(map(str, value)) for key, value in info.items() if value}}
    if (folder / "tokenizer.json").exists():
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        found["ids"] = [tokenizer.encode(text, split_special_tokens=True) for text in texts]
        talk = [{"role": "user", "content": "What is 2 + 2?"}]
        found["chat"] = tokenizer.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)
    return found


if __name__ == "__main__":
    main()

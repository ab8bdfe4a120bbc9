"""The same GPT-2 small, with the same random weights, in each library."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from nnsight import NNsight
from transformer_lens.model_bridge import TransformerBridge
from transformers import GPT2Config, GPT2LMHeadModel

from pellucid.front import Model
from pellucid.weights.loading import load_checkpoint

SHAPE = {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}


@dataclass(frozen=True)
class Contenders:
    """One set of weights in four libraries."""

    pellucid: Model
    hugging_face: Any
    hugging_face_eager: Any
    transformer_lens: Any
    nnsight: Any


def contenders(folder: Path) -> Contenders:
    """Build all of them from one folder of random weights."""
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(**SHAPE)).save_pretrained(folder)
    ours = Model(load_checkpoint(folder).transformer.requires_grad_(False), name="gpt2")
    sdpa = GPT2LMHeadModel.from_pretrained(folder, attn_implementation="sdpa").eval().requires_grad_(False)
    eager = GPT2LMHeadModel.from_pretrained(folder, attn_implementation="eager").eval().requires_grad_(False)
    return Contenders(ours, sdpa, eager, _transformer_lens(folder), NNsight(eager))


def _transformer_lens(folder: Path) -> Any:
    theirs = GPT2LMHeadModel.from_pretrained(folder, attn_implementation="eager").eval()
    bridge = TransformerBridge.boot_transformers(str(folder), hf_model=theirs, device="cpu")
    return bridge.eval().requires_grad_(False)


def check(found: Contenders) -> dict[str, float]:
    """Largest difference of each library's logits from ours, relative to their scale: the weights are the same."""
    ids = torch.arange(64)[None]
    with torch.no_grad():
        ours = found.pellucid.transformer(ids)
        others = {"Hugging Face": found.hugging_face(ids).logits}
        others["TransformerLens"] = found.transformer_lens(ids)
    return {name: float((theirs - ours).abs().max() / ours.abs().max()) for name, theirs in others.items()}

"""What is held in memory once everything can be read, at T = 1,024."""

import torch
from contenders import Contenders

from pellucid.inside.trace import trace


def memory_rows(found: Contenders) -> list[tuple[str, str, str]]:
    """Bytes of the distinct storages that each library holds, the model's own weights left out."""
    ids = torch.arange(1024)[None]
    ours = trace(found.pellucid.transformer, ids).nbytes
    held = {"our trace": ours}
    output = found.hugging_face_eager(ids, output_hidden_states=True, output_attentions=True)
    held["Hugging Face, hidden states and attentions"] = size([*output.hidden_states, *output.attentions])
    del output
    _, cache = found.transformer_lens.run_with_cache(ids)
    held["TransformerLens run_with_cache"] = size([cache[name] for name in cache])
    return [(name, f"{count / 1e6:,.0f} MB", f"{count / ours:.1f}") for name, count in held.items()]


def size(tensors: list[torch.Tensor]) -> int:
    """Bytes, a storage that several tensors share counted once."""
    return sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}.values())

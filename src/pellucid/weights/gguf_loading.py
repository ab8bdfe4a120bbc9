"""Opening a GGUF file: metadata to a Config, quantized weights to ours."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from ..model.transformer import Transformer
from .checkpoint import Checkpoint, naming
from .errors import CheckpointError
from .files import shown
from .generation_settings import check_generation
from .gguf_file import GGUF, GGUFTensor, read_gguf
from .gguf_forms import FORMS
from .names import Layout, check_layers, clean, plan, rows
from .outline import outline


def open_gguf(path: Path, device: torch.device | str, dtype: torch.dtype | None) -> Checkpoint:
    """Open a .gguf file in float32, or in another precision. Raises CheckpointError."""
    gguf = read_gguf(path)
    architecture = gguf.metadata.get("general.architecture")
    form = FORMS.get(architecture) if isinstance(architecture, str) else None
    if form is None:
        raise CheckpointError(f"{path}: architecture {shown([architecture])} is not one that is read here: {_known()}")
    with naming(path):
        config = form.read_config(gguf)
    check_layers(form.layout, gguf.tensors, config)
    transformer = outline(config)
    state = read(form.layout, gguf, transformer, dtype or torch.float32, device)
    transformer.load_state_dict(state, assign=True)
    return Checkpoint(config, transformer, str(path), gguf_metadata=gguf.metadata, generation=generation(gguf))


def _known() -> str:
    return ", ".join(FORMS)


def generation(gguf: GGUF) -> dict[str, object]:
    """The ids that start and end a text, under the names that config.json has for them; ends may be several."""
    ids = {key: gguf.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos", "eot", "eom")}
    check_generation({f"tokenizer.ggml.{key}_token_id": id for key, id in ids.items()}, gguf.path)
    ends = list(dict.fromkeys(ids[key] for key in ("eos", "eot", "eom") if ids[key] is not None))
    starts = {} if ids["bos"] is None else {"bos_token_id": ids["bos"]}
    return starts | ({"eos_token_id": ends} if ends else {})


def read(
    layout: Layout, gguf: GGUF, like: Transformer, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """The state dict of `like`, dequantized in two threads straight into its final tensors.

    Rows that change places are moved while they are still quantized, where that costs least. Raises CheckpointError
    where the file's tensors do not fit.
    """
    tensors = clean(layout, gguf.tensors)
    made = plan(layout, tensors, like)
    wanted = like.state_dict()

    def fill(ours: str) -> Tensor:
        entry, _ = layout.of(ours)
        weight = torch.empty(wanted[ours].shape, dtype=dtype)
        counts = rows(entry, weight, like.config)
        orders = entry.orders(counts, like.config)
        for room, name, order in zip(weight.split(counts), made[ours], orders, strict=True):
            _reordered(tensors[name], order).read(dtype, out=room)
        return weight.to(device)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(made, pool.map(fill, made), strict=True))


def _reordered(tensor: GGUFTensor, order: Int[Tensor, " rows"] | None) -> GGUFTensor:
    """A tensor with its rows, still quantized, in our order."""
    if order is None:
        return tensor
    # a bias is one row of as many numbers, of F32
    stored: UInt8[Tensor, "rows bytes"] = tensor.raw.reshape(tensor.shape[0], -1)
    return GGUFTensor(tensor.name, tensor.type, tensor.shape, stored[order.argsort()].reshape(tensor.raw.shape))

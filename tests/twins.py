"""A tiny random model of Hugging Face's, saved, and the same opened here."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pellucid.model.transformer import Transformer
from pellucid.weights.checkpoint import Checkpoint
from pellucid.weights.loading import load_checkpoint

EXACT = (torch.float64, 1e-10)
# Hugging Face takes norms, rotary tables and scores through fp32 in an fp64 model
NEAR = (torch.float64, 5e-6)
SINGLE = (torch.float32, 2e-5)

# Two rows, one of them shorter: padded on the right, and on the left
RIGHT = torch.tensor([[1] * 11, [1] * 7 + [0] * 4])
LEFT = RIGHT.flip(1)


def drawn(model: nn.Module, dtype: torch.dtype = torch.float32, seed: int = 3) -> nn.Module:
    """The model with every weight at random: biases and gains of a fresh one are 0 and 1, which would hide a mix-up."""
    torch.manual_seed(seed)
    for name, weight in model.state_dict().items():
        if "embed_positions" not in name and weight.is_floating_point():
            weight.normal_(std=0.3)
    return model.to(dtype).eval()


def opened(model: nn.Module) -> Checkpoint:
    """What `load_checkpoint` makes of the model's own files."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_checkpoint(folder)


def positions(mask: Tensor) -> Tensor:
    """Where each column stands in its row, counted without padding."""
    return (mask.cumsum(1) - 1).clamp(min=0)


@torch.no_grad()
def assert_twins(
    model: nn.Module,
    ours: Callable[[Transformer], Tensor],
    theirs: Callable[[nn.Module], Tensor],
    tolerance: float,
) -> None:
    """Open the model's own files here, and compare what the two compute, relative to the largest number."""
    mine, yours = ours(opened(model).transformer), theirs(model)
    assert mine.dtype == yours.dtype
    assert mine.shape == yours.shape
    assert (mine - yours).abs().max() <= tolerance * yours.abs().max()


def assert_same_text_model(model: nn.Module, tolerance: float, vocab_size: int) -> None:
    """Logits of a model that continues texts: one row, a batch, and padding on either side."""
    ids = torch.arange(22).reshape(2, 11) * 7 % vocab_size
    assert_twins(model, lambda t: t(ids[:1]), lambda hf: hf(ids[:1]).logits, tolerance)
    for mask in (torch.ones_like(RIGHT), RIGHT, LEFT):
        real = mask.bool()
        assert_twins(
            model,
            lambda t, mask=mask, real=real: t(ids, mask)[real],
            lambda hf, mask=mask, real=real: hf(ids, attention_mask=mask, position_ids=positions(mask)).logits[real],
            tolerance,
        )


def edited(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict, **fields: object) -> Path:
    """A saved folder with its tensors changed, and fields of its config.json; None takes one out."""
    file, config = folder / "model.safetensors", folder / "config.json"
    tensors = {name: tensor.clone().contiguous() for name, tensor in change(load_file(file)).items()}
    save_file(tensors, file)
    values = json.loads(config.read_text()) | fields
    config.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))
    return folder

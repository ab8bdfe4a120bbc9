"""Training checkpoints with the weights under `model` and the sizes under `model_args`: nanoGPT's ckpt.pt.

llama2.c's own training writes the same with LLaMA's names. Read as tensors and plain values only.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..model.config import Config, Dropout, Gelu, LayerNorm
from . import meta
from .checkpoint import Checkpoint, assemble, naming
from .errors import CheckpointError
from .fields import Fields
from .files import shown
from .names import TOKENS, UNEMBED, Entry, Layout, clean
from .pickle_file import is_mapped, read_pickle, weights_of
from .reading import drop_copy

LAYOUT = Layout(
    "nanoGPT",  # GPT-2's names, with matrices [out, in] as torch.nn.Linear has them
    (
        Entry(TOKENS, ("wte.weight",)),
        Entry("embed.position.weight", ("wpe.weight",)),
        Entry("blocks.{}.attention.norm", ("h.{}.ln_1",)),
        Entry("blocks.{}.attention.qkv", ("h.{}.attn.c_attn",)),
        Entry("blocks.{}.attention.out", ("h.{}.attn.c_proj",)),
        Entry("blocks.{}.ffn.norm", ("h.{}.ln_2",)),
        Entry("blocks.{}.ffn.up", ("h.{}.mlp.c_fc",)),
        Entry("blocks.{}.ffn.down", ("h.{}.mlp.c_proj",)),
        Entry("final_norm", ("ln_f",)),
        Entry(UNEMBED, ("lm_head.weight",)),
    ),
    prefix="transformer.",
    bare=("lm_head.weight",),
    ignored=(r"h\.\d+\.attn\.bias",),  # the causal mask of a model without flash attention
)


def open_training(path: Path, device: torch.device | str, dtype: torch.dtype | None) -> Checkpoint:
    """Open a .pt that a training script of nanoGPT or llama2.c wrote. Raises CheckpointError.

    A tokenizer may lie beside it.
    """
    content = read_pickle(path)
    values = content.get("model_args")
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise CheckpointError(
            f"{path}: expected the weights under model and the sizes under model_args, as nanoGPT saves them, found "
            f"{shown(content, most=10)}. Bare weights need a mapping file (.toml) that states the config"
        )
    plain = {str(key): value for key, value in values.items()}
    where = f"model_args of {path}"
    if "dim" in plain:
        layout, tensors = meta.LAYOUT, clean(meta.LAYOUT, weights_of(path, content))
        config = meta.config_with(tensors, plain, path)
    else:
        layout, tensors = LAYOUT, clean(LAYOUT, weights_of(path, content))
        with naming(path):
            config = _config(Fields(plain, where), tensors)
    transformer = assemble(layout, tensors, config, dtype, device, is_mapped(path))
    return Checkpoint(config, transformer, str(path), folder=path.parent)


def _config(fields: Fields, tensors: dict[str, Tensor]) -> Config:
    """nanoGPT's GPTConfig: exact GELU; `bias` false means none anywhere, in norms neither."""
    bias, rate = fields.flag("bias", True), fields.number("dropout", 0.0)
    config = Config(
        vocab_size=fields.size("vocab_size", 50304),
        context_length=fields.size("block_size", 1024),
        n_layers=fields.layers("n_layer", 12),
        d_model=fields.size("n_embd", 768),
        n_heads=fields.size("n_head", 12),
        norm=LayerNorm(bias=bias),
        activation=Gelu(),
        qkv_bias=bias,
        out_bias=bias,
        ffn_bias=bias,
        tied=drop_copy(tensors, "wte.weight", "lm_head.weight"),
        dropout=Dropout(rate, rate, rate),
    )
    fields.close()
    return config

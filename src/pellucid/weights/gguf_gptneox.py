"""GPT-NeoX in GGUF: attn_qkv holds all queries, then all keys, then all values, as it is here.

The format does not name the activation. Pythia's is the exact GELU, which is what is taken here; llama.cpp computes the
tanh form.
"""

from typing import Any

from ..model.config import Config, Gelu, LayerNorm, Parallel, PreNorm
from ..model.rotary import Rotary
from .gguf_file import GGUF
from .gguf_form import Form, own_fields, size_fields, sizes, vocab_size
from .names import TOKENS, UNEMBED, Entry, Layout

LAYOUT = Layout(
    "GGUF gptneox",
    (
        Entry(TOKENS, ("token_embd.weight",)),
        Entry("blocks.{}.attention.norm", ("blk.{}.attn_norm",)),
        Entry("blocks.{}.attention.qkv", ("blk.{}.attn_qkv",)),
        Entry("blocks.{}.attention.out", ("blk.{}.attn_output",)),
        Entry("blocks.{}.ffn.norm", ("blk.{}.ffn_norm",)),
        Entry("blocks.{}.ffn.up", ("blk.{}.ffn_up",)),
        Entry("blocks.{}.ffn.down", ("blk.{}.ffn_down",)),
        Entry("final_norm", ("output_norm",)),
        Entry(UNEMBED, ("output.weight",)),
    ),
)


def read_config(gguf: GGUF) -> Config:
    """The Config of a file; tied and without biases where those tensors are absent.

    Raises CheckpointError for a field that is not known, missing or not supported.
    """
    fields = own_fields(gguf)
    shape = sizes(fields, "gptneox")
    width = shape["d_model"] // max(shape["n_heads"], 1)
    rotated = fields.whole("gptneox.rope.dimension_count", width)
    if not 0 < rotated <= width:
        raise fields.error(f"gptneox.rope.dimension_count must lie in 1..{width}, got {rotated}")
    config = Config(
        vocab_size=vocab_size(gguf, fields, "gptneox"),
        **shape,
        positions=Rotary(fields.number("gptneox.rope.freq_base", 10000.0), rotated / width),
        norm=LayerNorm(fields.number("gptneox.attention.layer_norm_epsilon")),
        activation=Gelu(),
        block=Parallel(2) if fields.flag("gptneox.use_parallel_residual", True) else PreNorm(),
        qkv_bias="blk.0.attn_qkv.bias" in gguf.tensors,
        out_bias="blk.0.attn_output.bias" in gguf.tensors,
        tied="output.weight" not in gguf.tensors,
    )
    fields.only("gptneox.tensor_data_layout", "jploski")
    fields.only("gptneox.rope.scaling.type", "none")
    fields.close()
    return config


def write_metadata(config: Config) -> dict[str, Any]:
    """The metadata for a Config; the inverse of `read_config`."""
    rotary = config.positions if isinstance(config.positions, Rotary) else Rotary()
    return {
        **size_fields(config, "gptneox"),
        "gptneox.rope.dimension_count": rotary.width(config.d_head),
        "gptneox.rope.freq_base": rotary.base,
        "gptneox.use_parallel_residual": isinstance(config.block, Parallel),
        "gptneox.attention.layer_norm_epsilon": config.norm.eps,
    }


FORM = Form("gptneox", LAYOUT, read_config, write_metadata)

"""GPT-2 in GGUF: matrices are stored [out, in] there, and c_attn is one matrix as it is here."""

from typing import Any

from ..model.config import Config, LayerNorm
from .gguf_file import GGUF
from .gguf_form import Form, own_fields, size_fields, sizes, vocab_size
from .names import TOKENS, UNEMBED, Entry, Layout

LAYOUT = Layout(
    "GGUF gpt2",
    (
        Entry(TOKENS, ("token_embd.weight",)),
        Entry("embed.position.weight", ("position_embd.weight",)),
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
    """The Config of a file; tied where the file has no output.weight.

    Raises CheckpointError for a field that is not known, missing or not supported.
    """
    fields = own_fields(gguf)
    shape = sizes(fields, "gpt2")
    config = Config(
        vocab_size=vocab_size(gguf, fields, "gpt2"),
        **shape,
        norm=LayerNorm(fields.number("gpt2.attention.layer_norm_epsilon")),
        tied="output.weight" not in gguf.tensors,
    )
    fields.only("gpt2.rope.dimension_count", config.d_head)  # some files state it; nothing is rotated
    fields.only("gpt2.attention.causal", True)
    fields.close()
    return config


def write_metadata(config: Config) -> dict[str, Any]:
    """The metadata for a Config; the inverse of `read_config`."""
    return {**size_fields(config, "gpt2"), "gpt2.attention.layer_norm_epsilon": config.norm.eps}


FORM = Form("gpt2", LAYOUT, read_config, write_metadata)

"""BERT in GGUF: the encoder alone, for embeddings. The format has no place for its heads and pooler.

`bert.pooling_type` says what users make of the stream (0 nothing, 1 its mean, 2 its first vector); it changes nothing
in the model, and stays in the file's metadata.
"""

from typing import Any

from ..model.config import Bidirectional, Config, Gelu, LayerNorm, PostNorm
from .gguf_file import GGUF
from .gguf_form import Form, own_fields, size_fields, sizes, vocab_size
from .names import TOKENS, Entry, Layout

TYPES = "token_types.weight"
LAYOUT = Layout(
    "GGUF bert",
    (
        Entry(TOKENS, ("token_embd.weight",)),
        Entry("embed.position.weight", ("position_embd.weight",)),
        Entry("embed.types.weight", (TYPES,)),
        Entry("embed.norm", ("token_embd_norm",)),
        Entry("blocks.{}.attention.qkv", tuple(f"blk.{{}}.attn_{letter}" for letter in "qkv")),
        Entry("blocks.{}.attention.out", ("blk.{}.attn_output",)),
        Entry("blocks.{}.attention.norm", ("blk.{}.attn_output_norm",)),
        Entry("blocks.{}.ffn.up", ("blk.{}.ffn_up",)),
        Entry("blocks.{}.ffn.down", ("blk.{}.ffn_down",)),
        Entry("blocks.{}.ffn.norm", ("blk.{}.layer_output_norm",)),
    ),
)


def read_config(gguf: GGUF) -> Config:
    """The Config of a file, which has no head. Raises CheckpointError for a field that is not known or supported."""
    fields = own_fields(gguf)
    shape = sizes(fields, "bert")
    if TYPES not in gguf.tensors or len(gguf.tensors[TYPES].shape) != 2:
        raise fields.error(f"the tensor {TYPES} is missing, or not a matrix")
    config = Config(
        vocab_size=vocab_size(gguf, fields, "bert"),
        **shape,
        norm=LayerNorm(fields.number("bert.attention.layer_norm_epsilon")),
        activation=Gelu(),
        block=PostNorm(),
        masks=(Bidirectional(),),
        n_token_types=gguf.tensors[TYPES].shape[0],
        embedding_norm=True,
        head=None,
    )
    fields.only("bert.attention.causal", False)
    fields.ignore("bert.pooling_type")
    fields.close()
    return config


def write_metadata(config: Config) -> dict[str, Any]:
    """The metadata for a Config; the inverse of `read_config`."""
    return {
        **size_fields(config, "bert"),
        "bert.attention.layer_norm_epsilon": config.norm.eps,
        "bert.attention.causal": False,
    }


FORM = Form("bert", LAYOUT, read_config, write_metadata)

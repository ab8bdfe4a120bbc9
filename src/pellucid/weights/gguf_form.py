"""What there is to know of an architecture in GGUF: its metadata both ways, and its table; and what several share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..model.config import Config
from .fields import Fields
from .gguf_file import GGUF
from .names import Layout

_OTHERS = ("general.", "tokenizer.", "quantize.", "split.")  # about the file, the text, how it was quantized


def nothing_more(config: Config) -> Mapping[str, Tensor]:
    """No tensors beside the weights."""
    return {}


@dataclass(frozen=True)
class Form:
    """How a `general.architecture` is read and written.

    `write_metadata` is the inverse of `read_config` for the configs that the architecture can express; of others it
    writes what it can, and whoever saves compares. `extra` are tensors that follow from the config.
    """

    architecture: str
    layout: Layout
    read_config: Callable[[GGUF], Config]
    write_metadata: Callable[[Config], dict[str, Any]]
    extra: Callable[[Config], Mapping[str, Tensor]] = nothing_more


def own_fields(gguf: GGUF) -> Fields:
    """The metadata about the model itself."""
    own = {name: value for name, value in gguf.metadata.items() if not name.startswith(_OTHERS)}
    return Fields(own, str(gguf.path))


def vocab_size(gguf: GGUF, fields: Fields, architecture: str) -> int:
    """How many rows the token embedding has. Raises CheckpointError where the vocabulary has more tokens."""
    if "token_embd.weight" not in gguf.tensors:
        raise fields.error("the tensor token_embd.weight is missing")
    size = gguf.tensors["token_embd.weight"].shape[0]
    fields.only(f"{architecture}.vocab_size", size)
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > size:
        raise fields.error(f"token_embd.weight has {size} rows, fewer than the vocabulary's {len(tokens)} tokens")
    return size


def same_everywhere(fields: Fields, name: str, default: int | None) -> int:
    """A whole number, or a list with one for each layer, which must then all be the same."""
    given = fields.collect(name).get(name)
    if isinstance(given, list) and given and given.count(given[0]) == len(given):
        given = given[0]
    return Fields({name: given}, fields.where).size(name, default)


def sizes(fields: Fields, architecture: str) -> dict[str, Any]:
    """The sizes that every architecture states, as fields of a Config."""
    heads = fields.size(f"{architecture}.attention.head_count")
    return {
        "context_length": fields.size(f"{architecture}.context_length"),
        "n_layers": fields.layers(f"{architecture}.block_count"),
        "d_model": fields.size(f"{architecture}.embedding_length"),
        "n_heads": heads,
        "n_kv_heads": same_everywhere(fields, f"{architecture}.attention.head_count_kv", heads),
        "d_ff": same_everywhere(fields, f"{architecture}.feed_forward_length", None),
    }


def size_fields(config: Config, architecture: str) -> dict[str, Any]:
    """The inverse of `sizes`."""
    return {
        f"{architecture}.context_length": config.context_length,
        f"{architecture}.embedding_length": config.d_model,
        f"{architecture}.block_count": config.n_layers,
        f"{architecture}.feed_forward_length": config.d_ff,
        f"{architecture}.attention.head_count": config.n_heads,
    }

"""LLaMA as Meta releases it (Touvron et al. 2023): a folder with params.json and consolidated.NN.pth.

Mistral's own folders are alike, with consolidated.safetensors. Queries and keys pair neighbours for rotation.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..model.config import Causal, Config, Dropout, RMSNorm, SwiGLU, Window
from ..model.rotary import Llama3, Rotary
from .checkpoint import Checkpoint, assemble, naming
from .fields import Fields
from .files import check_downloaded, check_regular, file_in, parse_json
from .meta_shards import open_shards
from .names import TOKENS, UNEMBED, Entry, Layout, clean
from .order import neighbours
from .reading import drop_copy

PARAMS = "params.json"
_MOST_WIDTH = 2**31
_ATTENTION, _FFN = "layers.{}.attention", "layers.{}.feed_forward"
LAYOUT = Layout(
    "Meta",
    (
        Entry(TOKENS, ("tok_embeddings.weight",)),
        Entry("blocks.{}.attention.norm.weight", ("layers.{}.attention_norm.weight",)),
        Entry(
            "blocks.{}.attention.qkv.weight",
            (f"{_ATTENTION}.wq.weight", f"{_ATTENTION}.wk.weight", f"{_ATTENTION}.wv.weight"),
            order=neighbours,
        ),
        Entry("blocks.{}.attention.out.weight", (f"{_ATTENTION}.wo.weight",)),
        Entry("blocks.{}.ffn.norm.weight", ("layers.{}.ffn_norm.weight",)),
        Entry("blocks.{}.ffn.gate.weight", (f"{_FFN}.w1.weight",)),
        Entry("blocks.{}.ffn.up.weight", (f"{_FFN}.w3.weight",)),
        Entry("blocks.{}.ffn.down.weight", (f"{_FFN}.w2.weight",)),
        Entry("final_norm.weight", ("norm.weight",)),
        Entry(UNEMBED, ("output.weight",)),
    ),
    ignored=(r"rope\.freqs", r"freqs_(cos|sin|cis)"),
)


def open_meta(folder: Path, device: torch.device | str, dtype: torch.dtype | None) -> Checkpoint:
    """Open a folder with params.json and consolidated weights, in one file or in shards that each hold a part of every
    matrix. Raises CheckpointError.
    """
    path = file_in(folder, PARAMS)
    check_regular(path)
    data = path.read_bytes()
    check_downloaded(path, data)
    values = parse_json(data, path, PARAMS)
    tensors, mapped = open_shards(folder, Fields(values, str(path)).size("dim"))
    tensors = clean(LAYOUT, tensors)
    config = config_with(tensors, values, path)
    transformer = assemble(LAYOUT, tensors, config, dtype, device, mapped)
    return Checkpoint(config, transformer, str(folder), folder=_with_tokenizer(folder))


def config_with(tensors: dict[str, Tensor], values: Mapping[str, Any], path: Path) -> Config:
    """The Config of a params.json and of what its weights say: the vocabulary's size, and whether they are tied.

    An unembedding that equals the embedding to the last bit is taken out of `tensors`, and the config ties them.
    """
    fields = Fields(values, str(path))
    if "tok_embeddings.weight" not in tensors:
        raise fields.error("the weights beside it have no tok_embeddings.weight")
    size = tensors["tok_embeddings.weight"].shape[0]
    fields.only("vocab_size", -1, size)  # -1: as many as the tokenizer has
    tied = drop_copy(tensors, "tok_embeddings.weight", "output.weight")
    with naming(path):
        return _config(fields, size, tied)


def _config(fields: Fields, vocab_size: int, tied: bool) -> Config:
    eps = fields.number("norm_eps", 1e-5)
    own_form = "hidden_dim" in fields  # Mistral's, which states the width that Meta's works out
    window = fields.size("sliding_window") if "sliding_window" in fields else None
    fields.ignore("sliding_window")
    base = fields.number("rope_theta", 1e6 if own_form and window is None else 1e4)
    rotary = Rotary(base, scaling=_scaling(fields))
    width, heads = fields.size("dim"), fields.size("n_heads")
    rate = fields.number("dropout", 0.0)
    config = Config(
        vocab_size=vocab_size,
        context_length=fields.size("max_seq_len", _context_length(rotary, eps, own_form)),
        n_layers=fields.layers("n_layers"),
        d_model=width,
        n_heads=heads,
        n_kv_heads=fields.size("n_kv_heads", heads),
        d_head=fields.whole("head_dim", 0),
        d_ff=_ffn_width(fields, width),
        positions=rotary,
        norm=RMSNorm(eps),
        activation=SwiGLU(),
        masks=(Causal() if window is None else Window(window),),
        qkv_bias=False,
        out_bias=False,
        ffn_bias=False,
        tied=tied,
        dropout=Dropout(rate, rate, rate),
    )
    fields.ignore("max_batch_size")
    fields.only("model_type", "transformer")
    fields.only("tied_embeddings", tied)
    fields.close()
    return config


def _scaling(fields: Fields) -> Llama3 | None:
    """Llama 3.1's bands. Meta's code always divides by 8, unless params.json states `rope_scaling_factor`.

    Hugging Face's config of Llama 3.2's small models divides by 32; Meta's params.json does not tell them apart.
    """
    if not fields.flag("use_scaled_rope", False):
        return None
    return Llama3(fields.number("rope_scaling_factor", 8.0), 1.0, fields.number("rope_high_freq_factor", 4.0), 8192)


def _context_length(rotary: Rotary, eps: float, own_form: bool) -> int:
    """The release's context, which params.json does not state, by what tells the releases apart."""
    if rotary.scaling is not None:
        return 131072  # Llama 3.1 and after
    if own_form:
        return 32768  # Mistral
    lengths = {500000.0: 8192, 1000000.0: 16384}  # Llama 3, Code Llama
    return lengths.get(rotary.base, 2048 if eps < 1e-5 else 4096)  # LLaMA 1 has a smaller eps than Llama 2


def _ffn_width(fields: Fields, width: int) -> int:
    """Two thirds of 4 d, times a factor, rounded up to a multiple."""
    multiple, factor = fields.whole("multiple_of", 256), fields.number("ffn_dim_multiplier", 1.0)
    stated = fields.whole("hidden_dim", 0)
    if not (0 < width < _MOST_WIDTH and 0 < multiple < _MOST_WIDTH and 0 < factor < 1000):
        raise fields.error(
            f"no feed-forward width follows from dim={width}, multiple_of={multiple}, ffn_dim_multiplier={factor}"
        )
    return stated or -(-int(factor * (8 * width // 3)) // multiple) * multiple


def _with_tokenizer(folder: Path) -> Path | None:
    """The folder, unless all it has is Llama 3's tokenizer.model, which is another format than SentencePiece's."""
    path = file_in(folder, "tokenizer.model")
    if not path.is_file() or (folder / "tokenizer.json").is_file():
        return folder
    with path.open("rb") as file:
        return folder if file.read(1) == b"\n" else None  # the tag of a SentencePiece model's first piece

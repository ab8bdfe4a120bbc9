"""Llama in GGUF, llama.cpp's format: metadata to a Config, and quantized weights to ours.

GGUF keeps the rows of queries and keys for rotation of neighbouring features; ours turn feature i with feature
i + K/2. The rows are put in that order while they are still quantized, where moving them costs least.
"""

import math
from concurrent.futures import ThreadPoolExecutor

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from ..model.config import Config, RMSNorm, SwiGLU
from ..model.rotary import Linear, LongRope, Rotary, Scaling, Yarn
from ..model.transformer import Transformer
from .errors import CheckpointError
from .fields import Fields
from .gguf_file import GGUF, GGUFTensor
from .names import TOKENS, UNEMBED, Entry, Layout, clean, plan, rows
from .order import neighbours

ROPE_FACTORS = "rope_freqs.weight"
_OTHERS = ("general.", "tokenizer.", "quantize.", "split.")  # about the file, the text, how it was quantized


LAYOUT = Layout(
    "GGUF llama",
    (
        Entry(TOKENS, ("token_embd.weight",)),
        Entry("blocks.{}.attention.norm", ("blk.{}.attn_norm",)),
        Entry("blocks.{}.attention.qkv", tuple(f"blk.{{}}.attn_{letter}" for letter in "qkv"), order=neighbours),
        Entry("blocks.{}.attention.out", ("blk.{}.attn_output",)),
        Entry("blocks.{}.ffn.norm", ("blk.{}.ffn_norm",)),
        Entry("blocks.{}.ffn.gate", ("blk.{}.ffn_gate",)),
        Entry("blocks.{}.ffn.up", ("blk.{}.ffn_up",)),
        Entry("blocks.{}.ffn.down", ("blk.{}.ffn_down",)),
        Entry("final_norm.weight", ("output_norm.weight",)),
        Entry(UNEMBED, ("output.weight",)),
    ),
    ignored=(r"rope_freqs\.weight",),  # read with the config
)


def read_config(gguf: GGUF) -> Config:
    """The Config that a file's metadata and tensors describe: tied and without biases where those tensors are absent.

    Raises CheckpointError for another architecture, and for a field that is not known, missing or not supported.
    """
    architecture = gguf.metadata.get("general.architecture")
    if architecture != "llama":
        raise CheckpointError(f"{gguf.path}: architecture {architecture!r} is not one that is read here: llama")
    own = {name: value for name, value in gguf.metadata.items() if not name.startswith(_OTHERS)}
    fields = Fields(own, str(gguf.path))
    context_length, width = fields.whole("llama.context_length"), fields.whole("llama.embedding_length")
    heads = fields.whole("llama.attention.head_count")
    d_head = _head_width(fields, width, heads)
    config = Config(
        vocab_size=_vocab_size(gguf, fields),
        context_length=context_length,
        n_layers=fields.whole("llama.block_count"),
        d_model=width,
        n_heads=heads,
        n_kv_heads=_same_everywhere(fields, "llama.attention.head_count_kv", heads),
        d_head=d_head,
        d_ff=_same_everywhere(fields, "llama.feed_forward_length", None),
        positions=_rotary(gguf, fields, context_length),
        norm=RMSNorm(fields.number("llama.attention.layer_norm_rms_epsilon")),
        activation=SwiGLU(),
        qkv_bias="blk.0.attn_q.bias" in gguf.tensors,
        out_bias="blk.0.attn_output.bias" in gguf.tensors,
        ffn_bias="blk.0.ffn_up.bias" in gguf.tensors,
        tied="output.weight" not in gguf.tensors,
    )
    _refuse_the_rest(fields)
    return config


def generation(gguf: GGUF) -> dict[str, object]:
    """The ids that start and end a text, under the names that config.json has for them; ends may be several."""
    ids = {key: gguf.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos", "eot", "eom")}
    ends = list(dict.fromkeys(ids[key] for key in ("eos", "eot", "eom") if ids[key] is not None))
    starts = {} if ids["bos"] is None else {"bos_token_id": ids["bos"]}
    return starts | ({"eos_token_id": ends} if ends else {})


def read(gguf: GGUF, like: Transformer, dtype: torch.dtype, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """The state dict of `like`, dequantized in two threads straight into its final tensors.

    Raises CheckpointError where the file's tensors do not fit.
    """
    tensors = clean(LAYOUT, gguf.tensors)
    made = plan(LAYOUT, tensors, like)
    wanted = like.state_dict()

    def fill(ours: str) -> Tensor:
        entry, _ = LAYOUT.of(ours)
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


def _head_width(fields: Fields, width: int, heads: int) -> int:
    d_head = fields.whole("llama.attention.key_length", width // max(heads, 1))
    fields.only("llama.attention.value_length", d_head)
    fields.only("llama.rope.dimension_count", d_head)
    return d_head


def _vocab_size(gguf: GGUF, fields: Fields) -> int:
    if "token_embd.weight" not in gguf.tensors:
        raise fields.error("the tensor token_embd.weight is missing")
    size = gguf.tensors["token_embd.weight"].shape[0]
    fields.only("llama.vocab_size", size)
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > size:
        raise fields.error(f"token_embd.weight has {size} rows, fewer than the vocabulary's {len(tokens)} tokens")
    return size


def _same_everywhere(fields: Fields, name: str, default: int | None) -> int:
    """A whole number, or a list with one for each layer, which must then all be the same."""
    given = fields.collect(name).get(name)
    if isinstance(given, list) and len(set(given)) == 1:
        given = given[0]
    return Fields({name: given}, fields.where).whole(name, default)


def _rotary(gguf: GGUF, fields: Fields, context_length: int) -> Rotary:
    base = fields.number("llama.rope.freq_base", 10000.0)
    scaling = _scaling(fields, context_length)
    if ROPE_FACTORS in gguf.tensors:
        if scaling is not None:
            raise fields.error(f"{ROPE_FACTORS} together with rope scaling {scaling} is not supported")
        factors = tuple(gguf.tensors[ROPE_FACTORS].read(torch.float64).flatten().tolist())
        # Llama 3's bands, worked out pair by pair: the same divisors at every length
        scaling = LongRope(factors, factors, context_length, factor=1.0, magnitude=1.0)
    return Rotary(base, scaling=scaling)


def _scaling(fields: Fields, context_length: int) -> Scaling | None:
    kind = fields.text("llama.rope.scaling.type", "none")
    old = fields.number("llama.rope.scale_linear", 1.0)  # how files said it before there were types
    factor = fields.number("llama.rope.scaling.factor", old)
    original = fields.whole("llama.rope.scaling.original_context_length", context_length)
    fields.ignore("llama.rope.scaling.finetuned")
    if kind == "yarn":
        magnitude = fields.number("llama.rope.scaling.attn_factor", 1.0) * (0.1 * math.log(max(factor, 1.0)) + 1.0)
        return Yarn(factor, original, magnitude=magnitude)
    fields.only("llama.rope.scaling.attn_factor", 1.0)
    if kind == "linear" or (kind == "none" and old != 1.0):
        return Linear(factor)
    if kind != "none":
        raise fields.error(f"rope scaling {kind!r} is not known, only none, linear, yarn")
    return None


def _refuse_the_rest(fields: Fields) -> None:
    for name in ("llama.expert_count", "llama.expert_used_count", "llama.attention.sliding_window"):
        fields.only(name, 0)
    fields.only("llama.attention.causal", True)
    fields.only("llama.use_parallel_residual", False)
    fields.only("llama.tensor_data_layout", "Meta AI original pth")
    fields.close()

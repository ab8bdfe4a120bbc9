"""Llama in GGUF, llama.cpp's format: metadata to a Config, and quantized weights to ours.

GGUF keeps the rows of queries and keys for rotation of neighbouring features; ours turn feature i with feature
i + K/2. The rows are put in that order while they are still quantized, where moving them costs least.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..model.config import Config, RMSNorm, SwiGLU
from ..model.rotary import Linear, Llama3, LongRope, Rotary, Scaling, Yarn, frequencies
from .fields import Fields
from .files import shown
from .gguf_file import GGUF
from .gguf_form import Form, own_fields, size_fields, sizes, vocab_size
from .names import TOKENS, UNEMBED, Entry, Layout
from .order import neighbours

ROPE_FACTORS = "rope_freqs.weight"

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
    fields = own_fields(gguf)
    shape = sizes(fields, "llama")
    config = Config(
        vocab_size=vocab_size(gguf, fields, "llama"),
        **shape,
        d_head=_head_width(fields, shape["d_model"], shape["n_heads"]),
        positions=_rotary(gguf, fields, shape["context_length"]),
        norm=RMSNorm(fields.number("llama.attention.layer_norm_rms_epsilon")),
        activation=SwiGLU(),
        qkv_bias="blk.0.attn_q.bias" in gguf.tensors,
        out_bias="blk.0.attn_output.bias" in gguf.tensors,
        ffn_bias="blk.0.ffn_up.bias" in gguf.tensors,
        tied="output.weight" not in gguf.tensors,
    )
    _refuse_the_rest(fields)
    return config


def write_metadata(config: Config) -> dict[str, Any]:
    """The metadata for a Config; the inverse of `read_config`."""
    rotary = config.positions if isinstance(config.positions, Rotary) else Rotary()
    return {
        **size_fields(config, "llama"),
        "llama.vocab_size": config.vocab_size,
        "llama.attention.head_count_kv": config.n_kv_heads,
        "llama.attention.key_length": config.d_head,
        "llama.attention.value_length": config.d_head,
        "llama.rope.dimension_count": config.d_head,
        "llama.rope.freq_base": rotary.base,
        "llama.attention.layer_norm_rms_epsilon": config.norm.eps,
        **_scaling_fields(rotary.scaling),
    }


def _scaling_fields(scaling: Scaling | None) -> dict[str, Any]:
    match scaling:
        case Linear(factor):
            return {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": factor}
        case Yarn(factor, original, _, _, magnitude):
            own = 0.1 * math.log(max(factor, 1.0)) + 1.0
            return {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": factor,
                "llama.rope.scaling.original_context_length": original,
                "llama.rope.scaling.attn_factor": 1.0 if magnitude is None else magnitude / own,
            }
        case _:
            return {}


def rope_factors(config: Config) -> Mapping[str, Tensor]:
    """What each pair's frequency is divided by, where that is the same at every length (Llama 3's bands)."""
    rotary = config.positions
    if not isinstance(rotary, Rotary) or not isinstance(rotary.scaling, Llama3 | LongRope):
        return {}
    if isinstance(rotary.scaling, LongRope):
        return {ROPE_FACTORS: torch.tensor(rotary.scaling.short, dtype=torch.float32)}
    plain, _ = frequencies(Rotary(rotary.base), config.d_head, 1)
    scaled, _ = frequencies(rotary, config.d_head, 1)
    divisors = [before / after for before, after in zip(plain, scaled, strict=True)]
    return {ROPE_FACTORS: torch.tensor(divisors, dtype=torch.float32)}


def _head_width(fields: Fields, width: int, heads: int) -> int:
    d_head = fields.whole("llama.attention.key_length", width // max(heads, 1))
    fields.only("llama.attention.value_length", d_head)
    fields.only("llama.rope.dimension_count", d_head)
    return d_head


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
        raise fields.error(f"rope scaling {shown([kind])} is not known, only none, linear, yarn")
    return None


def _refuse_the_rest(fields: Fields) -> None:
    for name in ("llama.expert_count", "llama.expert_used_count", "llama.attention.sliding_window"):
        fields.only(name, 0)
    fields.only("llama.attention.causal", True)
    fields.only("llama.use_parallel_residual", False)
    fields.only("llama.tensor_data_layout", "Meta AI original pth")
    fields.close()


FORM = Form("llama", LAYOUT, read_config, write_metadata, rope_factors)

"""Quantized weights to numbers, many blocks at a time.

A quantized row is a run of blocks of 32 or 256 weights. A block keeps its weights as small whole numbers q beside a
scale d, and in some types an offset m, in half precision: the weight is d q, or d q + m. The K types give each 16 or 32
weights of a block of 256 a small scale of their own. Bit layouts: ggml-common.h and ggml-quants.c of ggml; each
weight is rounded as there, so the results are equal bit for bit.

n is the number of blocks. Each formula reads `blocks` [n, bytes of a block] and fills `y` [n, weights of a block].
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from .errors import CheckpointError

CHUNK = 1 << 20  # weights at a time: what is worked on stays in the processor's cache


def _q8_0(blocks: UInt8[Tensor, "n 34"], y: Float32[Tensor, "n 32"]) -> None:
    y.copy_(blocks[:, 2:].view(torch.int8)).mul_(_half(blocks, 0))


def _q4_0(blocks: UInt8[Tensor, "n 18"], y: Float32[Tensor, "n 32"]) -> None:
    y.copy_(_signed(_nibbles(blocks[:, 2:]), 8)).mul_(_half(blocks, 0))


def _q4_1(blocks: UInt8[Tensor, "n 20"], y: Float32[Tensor, "n 32"]) -> None:
    y.copy_(_nibbles(blocks[:, 4:])).mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q5_0(blocks: UInt8[Tensor, "n 22"], y: Float32[Tensor, "n 32"]) -> None:
    q = _nibbles(blocks[:, 6:]).bitwise_or_(_fifth_bits(blocks[:, 2:6]))
    y.copy_(_signed(q, 16)).mul_(_half(blocks, 0))


def _q5_1(blocks: UInt8[Tensor, "n 24"], y: Float32[Tensor, "n 32"]) -> None:
    q = _nibbles(blocks[:, 8:]).bitwise_or_(_fifth_bits(blocks[:, 4:8]))
    y.copy_(q).mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q4_k(blocks: UInt8[Tensor, "n 144"], y: Float32[Tensor, "n 256"]) -> None:
    scale, offset = _scales_and_offsets(blocks)
    q = _nibbles(blocks[:, 16:].view(-1, 4, 32))
    y.view(-1, 8, 32).copy_(q.view(-1, 8, 32)).mul_(scale).sub_(offset)


def _q5_k(blocks: UInt8[Tensor, "n 176"], y: Float32[Tensor, "n 256"]) -> None:
    scale, offset = _scales_and_offsets(blocks)
    # bit k of the 32 high bytes belongs to the k-th run of 32 weights
    high = (blocks[:, None, 16:48] >> _counts(8)[:, None]).bitwise_and_(1).bitwise_left_shift_(4)
    q = _nibbles(blocks[:, 48:].view(-1, 4, 32)).view(-1, 8, 32).bitwise_or_(high)
    y.view(-1, 8, 32).copy_(q).mul_(scale).sub_(offset)


def _q6_k(blocks: UInt8[Tensor, "n 210"], y: Float32[Tensor, "n 256"]) -> None:
    low = _nibbles(blocks[:, :128].view(-1, 2, 64)).view(-1, 2, 4, 32)
    high = (blocks[:, 128:192].view(-1, 2, 1, 32) >> (2 * _counts(4)[:, None])).bitwise_and_(3).bitwise_left_shift_(4)
    q = _signed(low.bitwise_or_(high), 32)
    scale = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8)
    y.view(-1, 16, 16).copy_(q.view(-1, 16, 16)).mul_(scale[:, :, None])


def _half(blocks: UInt8[Tensor, "n bytes"], at: int) -> Float32[Tensor, "n 1"]:
    """The half-precision number at byte `at` of each block."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(bytes_: UInt8[Tensor, "*n w"]) -> UInt8[Tensor, "*n 2*w"]:
    """The low four bits of every byte, then the high four bits of every byte."""
    *rows, width = bytes_.shape
    q = bytes_.new_empty(*rows, 2, width)
    torch.bitwise_and(bytes_, 15, out=q[..., 0, :])
    torch.bitwise_right_shift(bytes_, 4, out=q[..., 1, :])
    return q.flatten(-2)


def _fifth_bits(bytes_: UInt8[Tensor, "n 4"]) -> UInt8[Tensor, "n 32"]:
    """Bit j of the 32, as the value 16 or 0 at place j."""
    return (bytes_[:, :, None] >> _counts(8)).bitwise_and_(1).bitwise_left_shift_(4).flatten(1)


def _scales_and_offsets(blocks: UInt8[Tensor, "n bytes"]) -> tuple[Float32[Tensor, "n 8 1"], Float32[Tensor, "n 8 1"]]:
    """The scale and the offset of each 32 weights: six bits each, in bytes 4 to 15, times those of the whole block."""
    a, b, c = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scale = torch.cat([a & 63, (c & 15) | ((a >> 2) & 48)], dim=1)
    offset = torch.cat([b & 63, (c >> 4) | ((b >> 2) & 48)], dim=1)
    return (_half(blocks, 0) * scale)[:, :, None], (_half(blocks, 2) * offset)[:, :, None]


def _signed(q: UInt8[Tensor, "*n"], zero: int) -> Tensor:
    """q - zero as int8: the subtraction wraps around, which is what makes it right."""
    return q.sub_(zero).view(torch.int8)


def _counts(n: int) -> UInt8[Tensor, "n"]:
    return torch.arange(n, dtype=torch.uint8)


Formula = Callable[[Tensor, Tensor], None]


class Format(NamedTuple):
    """How a type is stored: weights and bytes of one block, and its formula or the torch type it is as it stands."""

    weights: int
    size: int
    fill: Formula | torch.dtype


FORMATS: dict[str, Format] = {
    "F64": Format(1, 8, torch.float64),
    "F32": Format(1, 4, torch.float32),
    "F16": Format(1, 2, torch.float16),
    "BF16": Format(1, 2, torch.bfloat16),
    "Q8_0": Format(32, 34, _q8_0),
    "Q4_0": Format(32, 18, _q4_0),
    "Q4_1": Format(32, 20, _q4_1),
    "Q5_0": Format(32, 22, _q5_0),
    "Q5_1": Format(32, 24, _q5_1),
    "Q4_K": Format(256, 144, _q4_k),
    "Q5_K": Format(256, 176, _q5_k),
    "Q6_K": Format(256, 210, _q6_k),
}


def dequantize(
    raw: UInt8[Tensor, "..."],
    type: str,
    shape: Sequence[int],
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The weights stored in `raw`, as a tensor of `shape` and `dtype` (fp32 unless said).

    `out`, where given, is filled and returned: any tensor of that shape, such as some rows of a fused matrix or a
    transposed view; its dtype is the one taken. `raw` may have any shape: rows of quantized weights can be put in
    another order before, which moves a seventh of the bytes. Without `out`, a type that is already `dtype` comes back
    as a view of `raw`. Raises CheckpointError for an unknown type and for a `raw` that is not of that shape's size.
    """
    form = FORMATS.get(type)
    if form is None:
        raise CheckpointError(f"cannot read weights of type {type!r}: expected one of {', '.join(FORMATS)}")
    expected = math.prod(shape) // form.weights * form.size
    last = shape[-1] if shape else 1
    if raw.dtype != torch.uint8 or raw.numel() != expected or last % form.weights:
        raise CheckpointError(
            f"expected {expected} bytes of {type} for shape {tuple(shape)}, in rows of a multiple of {form.weights}, "
            f"got {raw.numel()} of {raw.dtype}"
        )
    if out is not None and (tuple(out.shape) != tuple(shape) or dtype not in (None, out.dtype)):
        raise CheckpointError(
            f"expected an out of shape {tuple(shape)} and dtype {dtype or 'any'}, got {tuple(out.shape)}, {out.dtype}"
        )
    dtype = out.dtype if out is not None else dtype or torch.float32
    if isinstance(form.fill, torch.dtype):
        plain = raw.reshape(-1).view(form.fill).view(tuple(shape))
        return plain.to(dtype) if out is None else out.copy_(plain)
    out = torch.empty(tuple(shape), dtype=dtype) if out is None else out
    _fill(raw.reshape(-1, form.size), form.weights, form.fill, out[None] if out.ndim == 1 else out)
    return out


def _fill(blocks: UInt8[Tensor, "n bytes"], weights: int, formula: Formula, out: Tensor) -> None:
    """Some rows at a time: straight into an `out` in memory, fp32, without gaps; else by way of a small such tensor."""
    width = math.prod(out.shape[1:])
    rows = max(1, CHUNK // max(1, width))
    straight = out.is_cpu and out.dtype == torch.float32 and out.is_contiguous()
    aside = torch.empty(0 if straight else min(rows, len(out)) * width, dtype=torch.float32)
    for part, some in zip(out.split(rows), blocks.split(rows * width // weights), strict=True):
        numbers = part.view(-1) if straight else aside[: part.numel()]
        formula(some, numbers.view(-1, weights))
        if not straight:
            part.copy_(numbers.view(part.shape))

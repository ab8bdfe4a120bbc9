"""Dequantized weights equal the gguf package's, bit for bit, wherever they are written to."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from hypothesis import given
from hypothesis import strategies as st

from pellucid.weights.dequantize import CHUNK, FORMATS, dequantize
from pellucid.weights.errors import CheckpointError
from pellucid.weights.gguf_file import read_gguf

QUANTIZED = [name for name, form in FORMATS.items() if form.weights > 1]
# where each type keeps its half-precision scales and offsets
HALVES = {
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
EXTREME = [0.0, -0.0, 6e-8, -6e-8, 6.1e-5, 1.0, -1.0, 65504.0, -65504.0]  # to the ends of half precision


def random_blocks(name: str, rows: int, width: int, seed: int = 0) -> np.ndarray:
    """Any bits as weights, with finite scales of every size: ordinary, subnormal, the largest."""
    rng = np.random.default_rng(seed)
    form = FORMATS[name]
    blocks = rng.integers(0, 256, (rows * width // form.weights, form.size), dtype=np.uint8)
    for at in HALVES[name]:
        scales = rng.standard_normal(len(blocks)).astype(np.float16)
        some = rng.random(len(blocks)) < 0.5
        scales[some] = rng.choice(np.array(EXTREME, np.float16), some.sum())
        blocks[:, at : at + 2] = scales[:, None].view(np.uint8)
    return blocks.reshape(rows, -1)


def bits(values: torch.Tensor | np.ndarray) -> np.ndarray:
    return np.asarray(values, np.float32).view(np.int32)


@pytest.mark.parametrize("name", QUANTIZED)
def test_equals_the_gguf_package_bit_for_bit(name):
    raw = random_blocks(name, 200, 512)
    expected = gguf.quants.dequantize(raw, Type[name])
    got = dequantize(torch.from_numpy(raw), name, (200, 512))
    assert np.isfinite(expected).all()
    assert np.array_equal(bits(got), bits(expected))


@pytest.mark.parametrize("name", QUANTIZED)
@given(seed=st.integers(0, 2**32 - 1))
def test_any_bits_equal_the_gguf_package(name, seed):
    raw = np.random.default_rng(seed).integers(0, 256, (3, 256 // FORMATS[name].weights * FORMATS[name].size), np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, Type[name])
    got = dequantize(torch.from_numpy(raw), name, (3, 256)).numpy()
    # scales of any bits may be infinite or no number at all, whose many bit patterns are not kept apart
    assert np.array_equal(got, expected, equal_nan=True)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_plain_numbers_equal_the_gguf_package(name):
    size = FORMATS[name].size
    values = torch.randn(5, 7).to(FORMATS[name].fill)
    raw = values.view(torch.uint8)
    assert raw.shape == (5, 7 * size)
    assert np.array_equal(dequantize(raw, name, (5, 7)).numpy(), gguf.quants.dequantize(raw.numpy(), Type[name]))


def test_double_precision_is_kept_when_asked_for():
    values = torch.randn(5, 7, dtype=torch.float64)
    assert torch.equal(dequantize(values.view(torch.uint8), "F64", (5, 7), torch.float64), values)
    assert torch.equal(dequantize(values.view(torch.uint8), "F64", (5, 7)), values.float())


def test_a_whole_block_by_hand():
    # d = 0.5, m = -2; byte i holds weight i in its low half and weight 16 + i in its high half
    halves = np.array([0.5, -2.0], np.float16).view(np.uint8)
    raw = torch.from_numpy(np.concatenate([halves, np.arange(16, dtype=np.uint8) | 0x30]))
    expected = [0.5 * q - 2 for q in range(16)] + [0.5 * 3 - 2] * 16
    assert dequantize(raw, "Q4_1", (32,)).tolist() == expected


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_every_type_in_every_precision(name, dtype):
    form = FORMATS[name]
    raw = torch.randint(0, 60, (4, 256 // form.weights * form.size), dtype=torch.uint8)
    exact = dequantize(raw, name, (4, 256), torch.float64)
    got = dequantize(raw, name, (4, 256), dtype)
    assert got.dtype == dtype
    assert torch.equal(got, exact.to(dtype))


@pytest.mark.parametrize("name", ["Q4_1", "Q6_K", "F32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fills_some_rows_of_a_fused_matrix(name, dtype):
    form = FORMATS[name]
    raw = torch.randint(0, 60, (4, 256 // form.weights * form.size), dtype=torch.uint8)
    expected = dequantize(raw, name, (4, 256), dtype)
    fused = torch.full((9, 256), 7.0, dtype=dtype)
    out = dequantize(raw, name, (4, 256), out=fused[3:7])
    assert out.data_ptr() == fused[3].data_ptr()
    assert torch.equal(fused[3:7], expected)
    assert (fused[:3] == 7).all()
    assert (fused[7:] == 7).all()


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "F16"])
def test_fills_a_strided_view(name):
    form = FORMATS[name]
    raw = torch.randint(0, 60, (4, 256 // form.weights * form.size), dtype=torch.uint8)
    expected = dequantize(raw, name, (4, 256))
    transposed, columns = torch.empty(256, 4), torch.full((4, 300), 7.0)
    dequantize(raw, name, (4, 256), out=transposed.T)
    dequantize(raw, name, (4, 256), out=columns[:, 20:276])
    assert torch.equal(transposed.T, expected)
    assert torch.equal(columns[:, 20:276], expected)
    assert (columns[:, :20] == 7).all()
    assert (columns[:, 276:] == 7).all()


def test_rows_may_be_put_in_another_order_before():
    raw = torch.from_numpy(random_blocks("Q4_1", 8, 64))
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    assert torch.equal(dequantize(raw[order], "Q4_1", (8, 64)), dequantize(raw, "Q4_1", (8, 64))[order])
    pairs = raw.view(4, 2, -1).transpose(0, 1)
    assert torch.equal(dequantize(pairs, "Q4_1", (8, 64)), dequantize(raw, "Q4_1", (8, 64))[order])


@pytest.mark.parametrize("shape", [(3, CHUNK // 2 + 256), (CHUNK + 512,), (2, 3, 256), (1, 256)])
def test_shapes_that_are_worked_on_in_parts(shape):
    raw = torch.from_numpy(random_blocks("Q6_K", 1, int(np.prod(shape))))
    expected = torch.from_numpy(gguf.quants.dequantize(raw.numpy(), Type.Q6_K)).view(shape)
    assert torch.equal(dequantize(raw, "Q6_K", shape), expected)
    assert torch.equal(dequantize(raw, "Q6_K", shape, torch.bfloat16), expected.bfloat16())


def test_nothing_of_a_type_is_nothing():
    assert dequantize(torch.empty(0, dtype=torch.uint8), "Q8_0", (0, 32)).shape == (0, 32)
    assert dequantize(torch.empty(0, dtype=torch.uint8), "F32", (0, 32)).shape == (0, 32)


@pytest.mark.parametrize(
    ("size", "name", "shape"), [(34, "Q8_0", (64,)), (68, "Q8_0", (32,)), (34, "Q8_0", (2, 16)), (0, "Q8_0", ())]
)
def test_bytes_of_another_size_are_refused(size, name, shape):
    with pytest.raises(CheckpointError, match=f"bytes of {name}"):
        dequantize(torch.zeros(size, dtype=torch.uint8), name, shape)


def test_an_unknown_type_is_refused():
    with pytest.raises(CheckpointError, match=r"'IQ4_NL': expected one of .*Q4_1"):
        dequantize(torch.zeros(18, dtype=torch.uint8), "IQ4_NL", (32,))


def test_an_out_of_another_shape_or_precision_is_refused():
    raw = torch.zeros(34, dtype=torch.uint8)
    with pytest.raises(CheckpointError, match=r"expected an out of shape \(32,\)"):
        dequantize(raw, "Q8_0", (32,), out=torch.empty(1, 32))
    with pytest.raises(CheckpointError, match=r"float64"):
        dequantize(raw, "Q8_0", (32,), torch.float64, torch.empty(32))


@pytest.mark.parametrize("name", ["blk.3.attn_q.weight", "blk.29.ffn_down.weight", "output_norm.weight"])
def test_smollm2_equals_the_gguf_package(smollm2_path, name):
    tensor = read_gguf(smollm2_path).tensors[name]
    expected = gguf.quants.dequantize(tensor.raw.numpy(), Type[tensor.type])
    assert np.array_equal(bits(tensor.read()).reshape(-1), bits(expected).reshape(-1))

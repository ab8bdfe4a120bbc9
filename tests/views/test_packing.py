"""Packed arrays: the numbers come back within the error that is stated, and what cannot be packed is refused."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.views.packed import Packed
from pellucid.views.packing import pack, unpacked

KINDS = st.sampled_from(["uint8", "float16", "float32"])
SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)


def numbers(shape, seed, size):
    return np.random.default_rng(seed).normal(size=shape) * size


@given(SHAPES, KINDS, st.integers(0, 99), st.sampled_from([1e-3, 1.0, 500.0]))
def test_numbers_come_back_within_the_error(shape, kind, seed, size):
    values = numbers(shape, seed, size)
    array = pack("a", values, kind)
    assert array.shape == shape
    assert np.abs(unpacked(array) - values).max() <= array.error * (1 + 1e-9)
    least = {
        "uint8": np.ptp(np.append(values, 0)) / 255 / 2,
        "float16": 2**-11 * size * 5,
        "float32": 2**-24 * size * 5,
    }
    assert array.error <= least[kind] * 1.01 + 6e-8


@given(st.integers(1, 7), st.integers(1, 3), st.integers(0, 99), KINDS)
def test_of_a_triangle_only_the_entries_up_to_the_diagonal_are_there(size, heads, seed, kind):
    values = np.tril(np.abs(numbers((heads, size, size), seed, 1.0)))
    array = pack("a", values, kind, triangle=True)
    each = {"uint8": 1, "float16": 2, "float32": 4}[kind]
    assert len(array.data) == heads * size * (size + 1) // 2 * each
    assert np.abs(unpacked(array) - values).max() <= array.error + 1e-12


def test_whole_numbers_are_exact():
    values = np.array([[-(2**31), 0], [7, 2**31 - 1]])
    array = pack("ids", values, "int32")
    assert array.error == 0
    assert (unpacked(array) == values).all()


def test_the_bytes_are_as_the_file_says():
    meta = {"site": "3.stream", "n": 2}
    first, second = pack("a", [0.0, 0.5, 1.0], "uint8", within=(0.0, 1.0)), pack("b", [1.5, -2.0], "float32")
    data = Packed(meta, (first, second)).to_bytes()
    length = int.from_bytes(data[:4], "little")
    head, body = json.loads(data[4 : 4 + length]), data[4 + length :]
    assert (4 + length) % 8 == 0
    assert head["meta"] == meta
    starts = [each["start"] for each in head["arrays"]]
    assert starts == [0, 8]
    assert list(body[:3]) == [0, 128, 255]
    assert np.frombuffer(body[8:16], "<f4").tolist() == [1.5, -2.0]
    assert head["arrays"][0] | {"start": 0} == {
        "name": "a", "kind": "uint8", "shape": [3], "low": 0.0, "high": 1.0, "triangle": False,
        "error": pytest.approx(1 / 510, rel=1e-3), "start": 0,
    }  # fmt: skip


def test_what_is_not_finite_stays_so_in_floats_and_is_refused_in_8_bits():
    values = [1.0, -np.inf, np.nan]
    for kind in ("float16", "float32"):
        back = unpacked(pack("a", values, kind))
        assert back[0] == 1.0
        assert back[1] == -np.inf
        assert np.isnan(back[2])
    with pytest.raises(ValueError, match="not finite"):
        pack("a", values, "uint8")


@pytest.mark.parametrize(
    ("values", "kind", "within", "why"),
    [
        ([1e6], "float16", None, "too large for float16: the largest is 1e\\+06"),
        ([0.5], "int32", None, "no whole number"),
        ([2**31], "int32", None, "no whole number"),
        ([1.5], "uint8", (0.0, 1.0), "must lie within 0 to 1, got 1.5"),
    ],
)
def test_what_does_not_fit_is_refused(values, kind, within, why):
    with pytest.raises(ValueError, match=why):
        pack("a", np.array(values), kind, within=within)


def test_meta_that_json_cannot_say_is_refused():
    with pytest.raises(ValueError, match="JSON"):
        Packed({"x": float("nan")}, ()).to_bytes()

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.views import bar, strip

finite = st.floats(-1e6, 1e6)


@pytest.mark.parametrize(
    ("value", "drawn"),
    [
        (-1.0, "████│    "),
        (-0.5, "  ██│    "),
        (-0.125, "   ▐│    "),
        (0.0, "    │    "),
        (0.03125, "    │▏   "),
        (0.5, "    │██  "),
        (1.0, "    │████"),
        (7.0, "    │████"),
        (-math.inf, "████│    "),
        (math.nan, "    ?    "),
    ],
)
def test_signed_bars(value, drawn):
    assert bar(value, 1.0, 9) == drawn


@pytest.mark.parametrize(
    ("value", "drawn"),
    [(0.0, "    "), (0.25, "█   "), (0.28125, "█▏  "), (1.0, "████"), (-1.0, "    "), (math.nan, "?   ")],
)
def test_unsigned_bars(value, drawn):
    assert bar(value, 1.0, 4, signed=False) == drawn


def test_an_even_width_and_a_zero_scale():
    assert bar(1.0, 1.0, 4) == " │█ "
    assert bar(0.0, 0.0, 3) == " │ "


@given(finite, st.floats(0, 1e6), st.integers(3, 60), st.booleans())
def test_a_bar_has_exactly_its_width(value, scale, width, signed):
    assert len(bar(value, scale, width, signed=signed)) == width


@given(st.floats(0, 1), st.floats(0, 1), st.integers(3, 40))
def test_a_larger_value_never_has_a_shorter_bar(a, b, width):
    small, large = sorted((a, b))
    for sign in (1, -1):
        drawn = [bar(sign * value, 1.0, width).replace(" ", "") for value in (small, large)]
        assert len(drawn[0]) <= len(drawn[1])


def test_strips():
    assert strip(range(8), 8) == "▁▂▃▄▅▆▇█"
    assert strip([-1, 0, 1], 8) == "▁▅█"
    assert strip([0, 0], 8) == "▁▁"
    assert strip([], 8) == ""
    assert strip([1, math.nan, math.inf, 0.5], 8) == "█?█▅"
    assert strip([-math.inf, 1.0, -1.0], 3) == "▁█▁"


def test_a_long_vector_keeps_its_outliers():
    values = [0.1] * 576
    values[300] = -9.0
    drawn = strip(values, 24)
    assert drawn == "▅" * 12 + "▁" + "▅" * 11


@given(st.lists(finite, max_size=200), st.integers(1, 50))
def test_a_strip_has_a_character_for_every_run(values, width):
    assert len(strip(values, width)) == min(len(values), width)


@given(st.lists(st.floats(-1e3, 1e3), max_size=50))
def test_a_strip_does_not_depend_on_the_unit(values):
    assert strip([value * 4 for value in values], 20) == strip(values, 20)


def test_misuse_is_refused():
    with pytest.raises(ValueError, match="at least 3, got 2"):
        bar(1.0, 1.0, 2)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        strip([1.0], 0)
    with pytest.raises(ValueError, match="0 or more, got -1"):
        bar(1.0, -1.0, 9)
    with pytest.raises(ValueError, match="0 or more, got nan"):
        bar(1.0, math.nan, 9)

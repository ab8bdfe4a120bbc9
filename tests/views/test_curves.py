"""Curves and paths: values where they belong, every name written."""

import numpy as np
import pytest

from pellucid.views.curves import curves, paths


def test_curves_stand_over_their_x_with_their_names():
    view = curves([1, 2, 4], {"$a$": [1.0, None, 3.0], "b": [10.0, 20.0, 30.0]}, "title", ("depth", "norm"), True)
    (axes,) = view.figure.axes
    first, second = axes.lines
    np.testing.assert_array_equal(first.get_xydata(), [[1, 1], [2, np.nan], [4, 3]])
    np.testing.assert_array_equal(second.get_ydata(), [10, 20, 30])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [r"\$a\$", "b"]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_yscale()) == ("depth", "norm", "log")
    assert view._repr_png_().startswith(b"\x89PNG")
    assert all(float(tick).is_integer() for tick in axes.get_xticks())


def test_one_curve_needs_no_legend():
    assert curves([1, 2], {"a": [1, 2]}, "").figure.axes[0].get_legend() is None


def test_paths_begin_with_a_ring():
    (axes,) = paths({"x": [(0.0, 1.0), (2.0, 3.0)]}, "t", ("first", "second")).figure.axes
    line, ring = axes.lines
    np.testing.assert_array_equal(line.get_xydata(), [[0, 1], [2, 3]])
    np.testing.assert_array_equal(ring.get_xydata(), [[0, 1]])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("first", "second")
    (name,) = axes.texts
    assert (name.get_text(), name.xy) == ("x", (2.0, 3.0))


def test_what_cannot_be_drawn_is_said():
    with pytest.raises(ValueError, match=r"series of 2 values, got \[1\]"):
        curves([1, 2], {"a": [1.0]}, "")
    with pytest.raises(ValueError, match="at least one point"):
        paths({"a": []}, "")

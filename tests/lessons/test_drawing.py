"""Figures in characters: every series and row is there, at its height, within the width."""

import pytest
import torch

from pellucid.inside.effects import Effects
from pellucid.lessons.drawing import Bars, Curves, Grid
from pellucid.lessons.found import Found
from pellucid.views import Table

TABLE = Table("amounts", ("who", "amount"), (("a", 1.0), ("b", -2.0), ("a name far too long for it", None)))


def test_curves_share_one_scale():
    text = Curves("t", (0.0, 1.0), (("low", (0.0, 1.0)), ("high", (4.0, 8.0))), ("x", "y")).text()
    head, across, low, high = text.splitlines()
    assert (head, across) == ("t", "x 0 to 1; y")
    assert low.split() == ["low", "▁" * 9 + "▂" * 9, "0", "to", "1"]
    assert high.split() == ["high", "▅" * 9 + "█" * 9, "4", "to", "8"]
    assert max(map(len, text.splitlines())) <= 80


def test_logarithmic_curves_rise_evenly():
    *_, line = Curves("t", (0.0, 1.0, 2.0), (("a", (1.0, 10.0, 100.0)),), ("x", "y"), True).text().splitlines()
    assert line.split()[1] == "▁" * 6 + "▅" * 6 + "█" * 6
    assert line.endswith("1 to 100")


def test_many_points_fit_the_width():
    text = Curves("t", tuple(map(float, range(500))), (("a", tuple(map(float, range(500)))),), ("x", "y")).text()
    assert max(map(len, text.splitlines())) <= 80


def test_a_gap_is_drawn_as_one():
    assert "?" in Curves("t", (0.0, 1.0), (("a", (None, 1.0)),), ("x", "y")).text()


def test_bars_stand_under_their_names():
    head, a, b, long = Bars(TABLE, "amount").text().splitlines()
    assert head == "amounts: amount"
    assert (a[:2], a[-2:]) == ("a ", " 1")
    assert a.count("█") == b.count("█") // 2
    assert b.endswith("-2")
    assert long.startswith("a name far too long…")
    assert max(map(len, (head, a, b, long))) <= 80


def test_a_grid_is_shaded_by_size():
    effects = Effects("g", ("x", "y"), ("0", "1"), torch.tensor([[1.0, -2.0], [float("nan"), 0.0]]))
    head, said, x, y = Grid(effects).text().splitlines()
    assert head == "g"
    assert said == "position to the right; full shade is 2 in size"
    assert x.split() == ["x", "▒▒██"]
    assert y == "y"
    wide = Effects("g", ("x",), tuple(map(str, range(90))), torch.ones(1, 90))
    text = Grid(wide).text()
    assert "first 29 of 90 columns" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    "drawing", [Bars(TABLE, "amount"), Curves("t", (0.0, 1.0), (("a", (1.0, 2.0)),)),
                Grid(Effects("g", ("x",), ("0",), torch.ones(1, 1)))]
)  # fmt: skip
def test_every_figure_is_a_picture_too(drawing):
    assert drawing.plot()._repr_png_().startswith(b"\x89PNG")


def test_what_is_found_is_tables_and_then_the_figure():
    found = Found((TABLE,), Bars(TABLE, "amount"))
    assert str(found) == f"{TABLE}\n\n{Bars(TABLE, 'amount').text()}"
    assert found.to_json() == {"tables": [TABLE.to_json()]}

"""Figures: every label is written, values stand where they belong, files are what their names say."""

import importlib.util
import json

import numpy as np
import pytest

from pellucid.views import Table, View, bars, heat_map

GRID = [[1.0, -2.0, None], [0.0, 4.0, 0.5]]


def test_a_heat_map_shows_its_values_and_labels_on_one_scale():
    view = heat_map(GRID, ("0.stream", "1.stream"), ("a", "$b$", "c"), "title", ("site", "token", "effect"))
    axes, bar = view.figure.axes
    (image,) = axes.images
    assert np.array_equal(np.ma.filled(image.get_array(), np.nan), np.array(GRID, float), equal_nan=True)
    assert (image.norm.vmin, image.norm.vmax) == (-4.0, 4.0)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0.stream", "1.stream"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", r"\$b\$", "c"]
    assert (axes.get_xlabel(), axes.get_ylabel(), bar.get_ylabel()) == ("token", "site", "effect")


def test_bars_stand_in_order_with_their_labels():
    view = bars(["first", "x" * 40], [2.0, None], "title", "nats")
    (axes,) = view.figure.axes
    assert axes.patches[0].get_width() == 2.0
    assert np.isnan(axes.patches[1].get_width())
    assert axes.yaxis_inverted()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["first", "x" * 23 + "…"]


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_a_picture_is_saved_as_what_its_name_says(tmp_path, suffix, start):
    view = bars(["a"], [1.0], "title", "nats")
    assert view.save(tmp_path / f"x{suffix}").read_bytes().startswith(start)
    assert [path.name for path in tmp_path.iterdir()] == [f"x{suffix}"]
    assert view._repr_png_().startswith(b"\x89PNG")


def test_text_that_would_be_a_formula_or_a_control_character_is_drawn_as_text():
    view = bars(["$\\frac{1}{$", "a\nb"], [1.0, 2.0], "<b> $x^2$", "$")
    assert isinstance(view, View)
    view._repr_png_()
    assert view.figure.axes[0].get_yticklabels()[1].get_text() == "a\\nb"


def test_what_cannot_be_drawn_is_said(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match=r"\.png, \.svg, \.pdf, \.html, got 'x.gif'"):
        bars(["a"], [1.0], "", "").save(tmp_path / "x.gif")
    with pytest.raises(ValueError, match="there is no folder"):
        bars(["a"], [1.0], "", "").save(tmp_path / "none" / "x.png")
    (tmp_path / "x.png").mkdir()
    with pytest.raises(ValueError, match=r"x\.png is a folder"):
        bars(["a"], [1.0], "", "").save(tmp_path / "x.png")
    with pytest.raises(ValueError, match="2 labels and 1 values"):
        bars(["a", "b"], [1.0], "", "")
    with pytest.raises(ValueError, match="needs as many values"):
        heat_map([[1.0]], ["a"], ["b", "c"], "")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("pellucid.views.figures.find_spec", lambda name: None)
    monkeypatch.setattr("pellucid.views.table.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'pellucid\[train\]'"):
        bars(["a"], [1.0], "", "")
    with pytest.raises(ValueError, match="needs pandas"):
        Table("", ("a",), ((1,),)).to_pandas()


def test_a_table_draws_its_numbers_under_its_words():
    table = Table("who", ("layer", "part", "id", "amount", "share"), ((0, "a", 7, 1.5, 0.1), (1, "b", 8, -2.5, 0.2)))
    (axes,) = table.plot("amount").figure.axes
    assert [bar.get_width() for bar in axes.patches] == [1.5, -2.5]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a 7", "b 8"]
    assert table.plot().figure.axes[0].get_xlabel() == "layer"
    with pytest.raises(ValueError, match="stand in layer, amount, share, got 'part'"):
        table.plot("part")
    with pytest.raises(ValueError, match="no numbers to draw"):
        Table("", ("a",), (("x",),)).plot()


def test_a_table_comes_back_from_its_data():
    table = Table("who", ("part", "amount"), (("a", 1.5), ("b", None)), "note")
    assert Table.from_json(json.loads(json.dumps(table.to_json()))) == table
    with pytest.raises(ValueError, match="written as title, columns, rows, note, got title"):
        Table.from_json({"title": "x"})


def test_a_table_as_a_frame():
    frame = Table("who", ("part", "amount"), (("a", 1.5), ("b", None)), "note").to_pandas()
    assert list(frame.columns) == ["part", "amount"]
    assert frame["part"].tolist() == ["a", "b"]
    assert frame["amount"].isna().tolist() == [False, True]
    assert frame.attrs == {"title": "who", "note": "note"}


def test_a_heat_map_without_negative_values_has_one_colour_and_goes_by_magnitudes_where_told():
    (image,) = heat_map([[0.0, 0.5], [None, 0.25]], "ab", "cd", "").figure.axes[0].images
    assert (image.norm.vmin, image.norm.vmax, image.get_cmap().name) == (0.0, 0.5, "Purples")
    (image,) = heat_map([[0.0, 0.01], [None, 100.0]], "ab", "cd", "", logarithmic=True).figure.axes[0].images
    assert (image.norm.vmin, image.norm.vmax, float(image.norm(1.0))) == (0.01, 100.0, pytest.approx(0.5))
    view = heat_map([[0.0]], "a", "b", "", logarithmic=True)
    assert view._repr_png_().startswith(b"\x89PNG")

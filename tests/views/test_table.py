import dataclasses
import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pellucid.views import Table
from pellucid.views.table import columns_of, printable

cells = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30)
tables = st.integers(1, 5).flatmap(
    lambda n: st.builds(
        Table,
        st.text(max_size=20),
        st.tuples(*[st.text(max_size=12)] * n),
        st.lists(st.tuples(*[cells] * n), max_size=6).map(tuple),
        st.text(max_size=120),
    )
)


def test_text_is_drawn_exactly():
    table = Table("Next tokens", ("token", "id", "p"), (("␣Paris", 7042, 0.53214), ("東", 12, 0.1)), "two of many")
    assert str(table) == (
        "Next tokens\n"
        "token     id       p\n"
        "──────  ────  ──────\n"
        "␣Paris  7042  0.5321\n"
        "東        12  0.1000\n"
        "two of many"
    )
    assert repr(table) == str(table)


def test_numbers_of_a_column_share_their_decimals():
    table = Table("", ("a", "b", "c", "d"), ((17.25, 1e-7, 134_515_008, 0.0), (-3.5, 0.25, 5, 2e9)))
    assert str(table).splitlines()[2:] == [
        "17.250   1e-07  134,515,008          0",
        "-3.500  0.2500            5  2.000e+09",
    ]


def test_whole_numbers_have_separators_where_they_count_something():
    table = Table("", ("n", "id", "position"), ((1056, 7042, 1024), (8544, 12, 0)))
    assert str(table).splitlines()[2:] == ["1,056  7042      1024", "8,544    12         0"]


def test_names_of_rows_are_never_broken_and_brackets_stay_whole():
    name, bracket = "decoder.0.attention.input.scale", "LayerNorm(decoder.0.attention.sum)"
    lines = Table("", ("site", "a", "formula"), ((name, "x" * 12, bracket),)).text(80).splitlines()
    assert max(map(len, lines)) == 80
    assert [line.split() for line in lines[2:]] == [[name, "x" * 12, "LayerNorm("], ["decoder.0.attention.sum)"]]
    wide = Table("", ("site", "formula"), (("n" * 40, "word"),)).text(30).splitlines()
    assert wide[2].split() == ["n" * 40, "word"]


def test_what_is_not_a_number_or_not_there_is_shown():
    table = Table("", ("x", "word"), ((math.nan, "a"), (None, "b"), (-math.inf, "c"), (1.0, None)))
    assert str(table).splitlines()[2:] == ["  nan  a", "       b", " -inf  c", "1.000"]


def test_control_characters_cannot_reach_the_terminal():
    assert str(Table("", ("a",), (("\x1b[31m\n",),))).splitlines()[-1] == "\\x1b[31m\\n"


def test_a_table_without_columns_or_rows_is_its_title_and_note():
    assert str(Table("Empty", (), ())) == "Empty"
    assert str(Table("Empty", ("a", "bc"), (), "nothing")) == "Empty\na  bc\n─  ──\nnothing"


def test_long_words_wrap_to_the_width_and_lose_nothing():
    words = " ".join(f"word{i}" for i in range(40))
    table = Table("", ("n", "words"), ((1, words),))
    lines = str(table).splitlines()
    assert all(columns_of(line) <= 80 for line in lines)
    assert " ".join(line[3:] for line in lines[2:]) == words


@given(tables)
def test_cells_stand_under_their_headers(table):
    lines = table.text(10_000).split("\n")
    title = [printable(table.title)] if table.title else []
    ruler = lines[len(title) + 1]
    assert lines[: len(title)] == title
    assert set(ruler) <= {"─", " "}
    for line in lines[len(title) : len(title) + 2 + len(table)]:
        assert columns_of(line) <= columns_of(ruler)


@given(tables)
def test_json_is_valid_and_holds_every_number(table):
    data = json.loads(json.dumps(table.to_json(), allow_nan=False))
    assert list(data) == ["title", "columns", "rows", "note"]
    assert data["columns"] == list(table.columns)
    for got, row in zip(data["rows"], table, strict=True):
        for value, cell in zip(got, row, strict=True):
            lost = isinstance(cell, float) and not math.isfinite(cell)
            assert value == (None if lost else cell)


@pytest.mark.parametrize("number", [np.float32(0.5), np.float64(0.5), torch.tensor(0.5), Fraction(1, 2)])
def test_numbers_of_libraries_become_floats(number):
    table = Table("", ("a",), ((number,),))
    assert table.to_json()["rows"] == [[0.5]]
    assert str(table).endswith("0.5000")


def test_whole_numbers_of_libraries_become_ints():
    (value,) = Table("", ("a",), ((np.int64(7),),)).to_json()["rows"][0]
    assert type(value) is int


def test_rows_columns_and_top():
    table = Table("t", ("a", "b"), ((1, "x"), (2, "y"), (3, "z")), "n")
    assert len(table) == 3
    assert list(table) == [(1, "x"), (2, "y"), (3, "z")]
    assert table.column("b") == ("x", "y", "z")
    assert table.top(2) == Table("t", ("a", "b"), ((1, "x"), (2, "y")), "n")
    assert table.top(9) == table
    assert table.top(0).rows == ()


def test_misuse_is_refused_by_name():
    table = Table("t", ("a", "b"), ((1, 2),))
    with pytest.raises(ValueError, match="columns a, b; got 'c'"):
        table.column("c")
    with pytest.raises(ValueError, match="0 or more, got -1"):
        table.top(-1)
    with pytest.raises(ValueError, match=r"row 1 of the table 't' must have 2 cells \(a, b\), got 1"):
        Table("t", ("a", "b"), ((1, 2), (3,)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.title = "other"  # type: ignore[misc]


@given(tables, st.integers(0, 8))
def test_top_is_the_beginning(table, k):
    assert table.top(k).rows == table.rows[:k]

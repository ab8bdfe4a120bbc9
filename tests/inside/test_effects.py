import json
import math

import pytest
import torch

from pellucid.inside.effects import Effects

GRID = Effects(
    "a grid", ("0.stream", "1.stream"), ("0 a", "1 b", "2 c"),
    torch.tensor([[0.0, -2.5, 1.0], [0.25, math.nan, 2.0]]), "what it says", base=1.0, source=3.0,
)  # fmt: skip


def test_every_value_is_on_a_line_of_its_own_and_what_is_not_there_is_left_out() -> None:
    table = GRID.table()
    assert table.columns == ("site", "position", "effect")
    assert list(table) == [
        ("0.stream", "0 a", 0.0), ("0.stream", "1 b", -2.5), ("0.stream", "2 c", 1.0),
        ("1.stream", "0 a", 0.25), ("1.stream", "2 c", 2.0),
    ]  # fmt: skip


def test_the_largest_come_first_by_size() -> None:
    assert list(GRID.top(2)) == [("0.stream", "1 b", -2.5), ("1.stream", "2 c", 2.0)]
    assert len(GRID.top(99)) == 5
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        GRID.top(0)


def test_the_grid_has_one_line_a_row() -> None:
    grid = GRID.grid()
    assert grid.columns == ("site", "0 a", "1 b", "2 c")
    assert list(grid) == [("0.stream", 0.0, -2.5, 1.0), ("1.stream", 0.25, None, 2.0)]
    assert str(GRID) == str(grid) == repr(GRID)


def test_the_grid_as_json_has_null_for_what_is_not_there() -> None:
    data = json.loads(json.dumps(GRID.to_json(), allow_nan=False))
    assert data["values"] == [[0.0, -2.5, 1.0], [0.25, None, 2.0]]
    assert (data["of"], data["base"], data["source"], data["note"]) == ("a grid", 1.0, 3.0, "what it says")
    assert (data["rows"], data["columns"]) == (["0.stream", "1.stream"], ["0 a", "1 b", "2 c"])


def test_a_value_is_found_by_labels_or_numbers() -> None:
    assert GRID["0.stream", "1 b"] == GRID[0, 1] == GRID[-2, "1 b"] == -2.5
    with pytest.raises(ValueError, match="there is no position 'x'"):
        GRID["0.stream", "x"]
    with pytest.raises(ValueError, match="there is no site 2"):
        GRID[2, 0]


def test_values_that_do_not_fit_the_labels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"2 rows and 1 columns needs as many values, got \(2, 3\)"):
        Effects("x", ("a", "b"), ("c",), torch.zeros(2, 3))

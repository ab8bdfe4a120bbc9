"""Edits on disk: they come back as they were, and a file of anything else is refused."""

import json
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pellucid as pl
from pellucid.inside import edit_files
from pellucid.inside.edit_files import edits_as_bytes, read_edits, write_edits
from pellucid.inside.errors import EditError
from pellucid.inside.plan import plan
from tiny import passed, random_ids, tiny_gpt2, traced

VECTOR = torch.randn(32, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def every() -> list[pl.Edit]:
    other = traced(tiny_gpt2(), random_ids(1, 5, seed=9))
    return [
        pl.zero("0.attention.heads", head=[1, 3]),
        pl.add("1.stream", VECTOR, position=2),
        pl.scale("1.ffn.neurons", -0.1, neuron=[0, 7]),
        pl.knockout("1.attention.scores", key=0),
        pl.noise("embed.token", 0.3, seed=2),
        pl.set("0.attention.value", 1 / 3, kv_head=2),
        pl.patch("1.attention.pattern", other, head=1),
        pl.mean("0.ffn.update", other),
    ]


def test_edits_come_back_as_they_were(tmp_path):
    model, ids, path = tiny_gpt2(), random_ids(2, 5), tmp_path / "edits.json"
    write_edits(path, every())
    found = read_edits(path)
    assert [edit.to_json() for edit in found] == [edit.to_json() for edit in every()]
    edited = [passed(model, ids, looks=plan(model, edits).looks()) for edits in (found, every())]
    assert torch.equal(*edited)
    assert not torch.equal(edited[0], passed(model, ids))
    write_edits(path, found[:1])
    assert len(read_edits(path)) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["edits.json"]
    write_edits(path, [])
    assert read_edits(path) == ()


def test_what_has_no_such_form_is_not_written(tmp_path):
    for edit in (pl.map("1.stream", torch.relu), pl.add("1.stream", torch.tensor(torch.inf))):
        with pytest.raises(EditError, match="cannot be written"):
            write_edits(tmp_path / "edits.json", [edit])
    assert list(tmp_path.iterdir()) == []


ZERO = {"kind": "zero", "site": "1.stream"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "map"}, "kind must be one of"),
        ({"kind": ["zero"]}, "kind must be one of"),
        ({"site": 3}, "site must be"),
        ({"heads": 1}, "heads must be whole numbers"),
        ({"heads": [True]}, "heads must be whole numbers"),
        ({"positions": [-1]}, "positions must be"),
        ({"keys": [10**30]}, "keys must be"),
        ({"kind": "add"}, "needs a value"),
        ({"kind": "add", "value": "1"}, "value must be"),
        ({"kind": "add", "value": [[1.0], [1.0, 2.0]]}, "expected sequence"),
        ({"kind": "add", "value": []}, "value must be"),
        ({"kind": "add", "value": [[[[[1.0]]]]]}, "value must be"),
        ({"kind": "set", "value": 10**400}, "value must be"),
        ({"kind": "set", "value": [1.0], "at": [0, 2]}, "neighbouring"),
        ({"at": [0]}, "neighbouring"),
        ({"kind": "scale", "factor": "2"}, "factor must be"),
        ({"seed": 1.5}, "seed must be"),
        ({"whole": 1}, "whole and full true or false"),
        ({"function": "print"}, "no field function"),
        ({"__class__": "x"}, "no field __class__"),
    ],
)
def test_a_field_that_is_none_is_refused(tmp_path, change, said):
    path = tmp_path / "edits.json"
    path.write_text(json.dumps({"schema": "pellucid edits 1", "edits": [ZERO, ZERO | change]}))
    with pytest.raises(EditError, match=f"edits.json: edit 1: .*{said}"):
        read_edits(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        "{}",
        '{"schema": "pellucid edits 1", "edits": {}}',
        '{"schema": "pellucid edits 1", "edits": [3]}',
        '{"schema": "pellucid edits 1", "edits": [], "code": "x"}',
        '{"schema": "pellucid edits 1", "edits": [{"kind": "add", "site": "1.stream", "value": NaN}]}',
        '{"schema": "pellucid edits 2", "edits": []}',
        "\udcff",
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, text):
    path = tmp_path / "edits.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(EditError, match=r"edits\.json"):
        read_edits(path)


def test_a_file_that_is_not_there_or_too_large(tmp_path, monkeypatch):
    for path in (tmp_path, tmp_path / "absent.json"):
        with pytest.raises(EditError, match="expected a file of edits"):
            read_edits(path)
    write_edits(tmp_path / "edits.json", every())
    monkeypatch.setattr(edit_files, "MOST_BYTES", 100)
    with pytest.raises(EditError, match="at most 100 bytes"):
        read_edits(tmp_path / "edits.json")


@pytest.fixture(scope="module")
def written() -> bytes:
    return edits_as_bytes(every()[:6])


@given(st.integers(0, 10_000))
def test_sec_1_changed_bytes_of_a_file_of_edits(tmp_path_factory, written, seed):
    """Whatever a file holds, it gives edits or an EditError."""
    draw, data = random.Random(seed), bytearray(written)
    for _ in range(draw.randint(1, 4)):
        data[draw.randrange(len(data))] = draw.choice(b'0123456789[]{},.:"-e ntrue\xff')
    path = tmp_path_factory.getbasetemp() / "changed.json"
    path.write_bytes(bytes(data))
    try:
        found = read_edits(path)
    except EditError:
        return
    assert all(isinstance(edit, pl.Edit) for edit in found)

import pytest
import torch

from pellucid.cli.patch import blocks, telling
from pellucid.inside.edits import patch
from pellucid.inside.effects import Effects

CLEAN, CORRUPTED = "the cat sat on", "the dog sat on"


def test_the_grid_is_the_edited_runs(ask, oracle):
    from pellucid.front import load

    _, _, folder = oracle
    found, model = ask("patch", folder, CLEAN, CORRUPTED, "--token", " the", "--minus", " on"), load(folder)
    clean, corrupted = model.trace(CLEAN), model.trace(CORRUPTED)
    assert found["clean"] == clean.tokens()
    assert found["corrupted"] == corrupted.tokens()
    assert found["rows"] == [f"{layer}.stream" for layer in range(4)]
    assert found["columns"] == [f"{at} {token}" for at, token in enumerate(corrupted.tokens())]
    token, minus = model.tokenizer.id_of(" the"), model.tokenizer.id_of(" on")

    def answer(trace):
        logits = trace["logits"][0, -1].double()
        return float(logits[token] - logits[minus])

    low, high = answer(corrupted), answer(clean)
    for layer, row in enumerate(found["values"]):
        for position, effect in enumerate(row):
            edited = corrupted.edit(patch(f"{layer}.stream", clean, position=position))
            assert effect == pytest.approx((answer(edited) - low) / (high - low), abs=1e-3)
    other = ask("patch", folder, CLEAN, CORRUPTED, "--token", " the", "--minus", " on", "--noising")
    assert (other["base"], other["source"]) == (found["source"], found["base"]) == pytest.approx((high, low), abs=1e-4)


def test_heads_are_patched_one_by_one(ask, call, tiny):
    found = ask("patch", tiny, CLEAN, CORRUPTED, "--sites", "*.attention.heads")
    assert (found["names"], found["columns"]) == (["site", "head", "effect"], ["0", "1", "2", "3"])
    code, out, err = call("patch", tiny, CLEAN, CORRUPTED, "--sites", "*.attention.heads", "--top", 2)
    assert (code, err) == (0, "")
    grid, largest = out.rstrip("\n").split("\n\n")
    assert len(grid.splitlines()) == 3 + 3 + 1
    assert len(largest.splitlines()) == 3 + 2 + 1


def test_what_is_printed_has_tokens_over_its_columns_and_fits(call, tiny):
    code, out, err = call("patch", tiny, CLEAN * 3, CORRUPTED * 3)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert "0 the" in out.splitlines()[1]


def test_blocks_hold_every_column_once():
    labels = tuple(f"{at} word" for at in range(30))
    found = Effects("title", ("0.stream", "1.stream"), labels, torch.arange(60.0).reshape(2, 30), "note")
    tables = list(blocks(found))
    assert [label for table in tables for label in table.columns[1:]] == list(labels)
    assert [value for table in tables for value in table.rows[1][1:]] == list(map(float, range(30, 60)))
    assert [table.title for table in tables] == ["title"] + [""] * (len(tables) - 1)
    assert [table.note for table in tables] == [""] * (len(tables) - 1) + ["note"]
    assert len(list(blocks(found, width=5))) == 30


def test_a_bar_is_told_what_is_new():
    told: list[tuple[str, int | None] | int] = []

    def begin(what, size):
        told.append((what, size))
        return told.append

    tell = telling(begin)
    tell(4, 9)
    tell(9, 9)
    assert told == [("patching", 9), 4, 5]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((CLEAN, "the dog sat"), "must have as many tokens"),
        ((CLEAN, CLEAN), "is the same"),
        ((CLEAN, CORRUPTED, "--sites", "9.stream"), "the last layer is 2"),
        ((CLEAN, CORRUPTED, "--each", "head"), "has no heads"),
        ((CLEAN, CORRUPTED, "--token", "the cat"), "token"),
    ],
)
def test_what_cannot_be_patched_is_one_line(call, tiny, arguments, reason):
    code, out, err = call("patch", tiny, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("pellucid: ")
    assert err.count("\n") == 1
    assert reason in err or "in both runs" in err

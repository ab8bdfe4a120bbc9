import json

import pytest
import torch

import pellucid as pl
from pellucid.front import load
from pellucid.inside.edit_files import read_edits, write_edits

PROMPT = "The capital of"


@pytest.mark.slow
def test_before_and_after(ask, tiny):
    found = ask("edit", tiny, "--zero", "1.attention.heads", "--head", "0,2-3", "--prompt", PROMPT, "--top", 3)
    model = load(tiny)
    edited = model.edited(pl.zero("1.attention.heads", head=[0, 2, 3]))
    for name, each in (("before", model), ("after", edited)):
        assert found[name]["next"] == each.trace(PROMPT).top(3).to_json()
        assert found[name]["text"] == each.generate(PROMPT, temperature=0.0, max_new_tokens=16).text
    assert found["edits"] == [{**pl.zero("1.attention.heads", head=[0, 2, 3]).to_json()}]
    assert found["before"] != found["after"]


def test_the_printed_change_is_readable(call, tiny):
    code, out, err = call("edit", tiny, "--zero", "*.ffn.update", "--prompt", PROMPT, "--max-new-tokens", 2)
    assert (code, err) == (0, "")
    assert "before" in out.splitlines()[1]
    assert "after" in out.splitlines()[1]
    assert max(map(len, out.splitlines()[:8])) <= 80


def test_what_weights_can_say_is_saved_in_them(ask, tiny, tmp_path):
    out = tmp_path / "baked"
    found = ask("edit", tiny, "--zero", "1.ffn.neurons", "--neuron", "3,5-9", "--save", out)
    assert found["saved"]["why"] == ""
    assert not (out / "edits.json").exists()
    edited, saved = load(tiny).edited(pl.zero("1.ffn.neurons", neuron=[3, 5, 6, 7, 8, 9])), load(out)
    torch.testing.assert_close(saved.trace(PROMPT)["logits"], edited.trace(PROMPT)["logits"], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(saved.trace(PROMPT)["logits"], load(tiny).trace(PROMPT)["logits"])


def test_other_edits_are_saved_beside_the_weights(ask, call, tiny, tmp_path):
    out, file = tmp_path / "edited", tmp_path / "mine.json"
    write_edits(file, [pl.add("1.stream", torch.ones(24), position=2)])
    found = ask("edit", tiny, "--edits", file, "--zero", "0.ffn.update", "--save", out)
    assert "narrowed to some positions" in found["saved"]["why"]
    edits = read_edits(out / "edits.json")
    assert [edit.kind for edit in edits] == ["add", "zero"]
    expected = load(tiny).edited(*edits).trace(PROMPT)["logits"]
    again = load(out)
    assert "2 edits" in repr(again)
    torch.testing.assert_close(again.trace(PROMPT)["logits"], expected)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["edited", "mine.json"]
    code, _, err = call("edit", tiny, "--edits", file, "--save", out)
    assert code == 2
    assert "there already" in err


def test_a_model_that_fills_masks(ask, masked):
    found = ask("edit", masked[2], "--zero", "1.ffn.update", "--prompt", "paris is [MASK]")
    assert found["before"]["next"]["title"] == "masked tokens"
    assert found["before"] != found["after"]


def test_a_model_that_translates(ask, translating):
    found = ask("edit", translating, "--zero", "encoder.0.stream", "--prompt", "the cat", "--max-new-tokens", 3)
    assert found["before"]["next"] is None
    assert isinstance(found["after"]["text"], str)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--zero", "1.ffn.update"), "give --prompt TEXT"),
        (("--prompt", "a"), "there are no edits"),
        (("--prompt", "a", "--zero", "1.ffn.updat"), "no site fits"),
        (("--prompt", "a", "--head", "1"), "no site was named"),
        (("--prompt", "a", "--zero", "1.attention.heads", "--head", "3-1"), "numbers and ranges"),
        (("--prompt", "a", "--zero", "1.attention.heads", "--head", "7"), "head must lie in 0..3"),
        (("--prompt", "a", "--edits", "absent.json"), "expected a file of edits"),
    ],
)
def test_what_makes_no_sense_is_one_line(call, tiny, arguments, said):
    code, out, err = call("edit", tiny, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_a_file_of_other_json_is_one_line(call, tiny, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"edits": []}))
    code, _, err = call("edit", tiny, "--edits", path, "--prompt", "a")
    assert code == 2
    assert err.count("\n") == 1

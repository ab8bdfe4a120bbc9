"""Edits of single scores: one key of one query of one head, against the softmax written out by hand."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.inside import edits as edit
from pellucid.inside.edits import Edit
from pellucid.inside.errors import EditError
from pellucid.model.transformer import Transformer
from tiny import build, configs, passed, random_ids, tiny_gpt2, traced

TOKENS = 6


def by_json(trace, *edits: dict):
    """The trace edited with edits that came as JSON."""
    return trace.edit(*(Edit.from_json(json.loads(json.dumps(each))) for each in edits))


def stem(model: Transformer, layer: int, part: str) -> str:
    return f"{model.prefix}{layer}.{part}"


def softmax(scores: torch.Tensor) -> torch.Tensor:
    """Of a row whose hidden keys are -inf, written out."""
    weights = torch.where(scores.isinf(), 0.0, (scores - scores[scores.isfinite()].max()).exp())
    return weights / weights.sum()


def logits_with(model: Transformer, ids, site: str, head: int, query: int, row: torch.Tensor) -> torch.Tensor:
    """The logits of a whole pass in which one query's pattern is another, put there by hand."""

    def put(value, _place, _keys):
        value = value.clone()
        value[:, head, query] = row
        return value

    return passed(model, ids, looks={site: put})


@pytest.mark.slow
@settings(max_examples=40)
@given(configs(), st.data())
def test_a_score_set_at_one_key_is_what_the_formula_says_in_every_form(config, data):
    model, ids = build(config), random_ids(1, TOKENS)
    part = data.draw(st.sampled_from(["attention", "cross"] if config.encoder is not None else ["attention"]))
    layer, head = data.draw(st.integers(0, config.n_layers - 1)), data.draw(st.integers(0, config.n_heads - 1))
    query, value = data.draw(st.integers(0, TOKENS - 1)), data.draw(st.floats(-4, 4))
    base, name = traced(model, ids), stem(model, layer, part)
    scores = base[f"{name}.scores"][0, head, query].clone()
    key = data.draw(st.sampled_from(scores.isfinite().nonzero().flatten().tolist()))
    where = {"site": f"{name}.scores", "heads": [head], "positions": [query], "keys": [key]}
    found = by_json(base, {"kind": "set", "value": value, **where})
    scores[key] = value
    assert torch.equal(found[f"{name}.scores"][0, head, query], scores)
    torch.testing.assert_close(found[f"{name}.pattern"][0, head, query], softmax(scores), atol=1e-14, rtol=0)
    before, after = (trace[f"{name}.pattern"].clone() for trace in (base, found))
    after[0, head, query] = before[0, head, query]
    assert torch.equal(before, after)
    if config.head is not None:
        expected = logits_with(model, ids, f"{name}.pattern", head, query, softmax(scores))
        torch.testing.assert_close(found[f"{model.prefix}logits"], expected, atol=1e-10, rtol=1e-10)


def test_several_keys_take_one_number_each_and_hidden_keys_stay_hidden():
    base = traced(tiny_gpt2(), random_ids(1, TOKENS))
    site = "1.attention.scores"
    found = base.edit(edit.set_to(site, [2.0, -1.0, 9.0], head=3, position=4, key=[3, 0, 5]))
    row = base[site][0, 3, 4].clone()
    row[[3, 0]] = torch.tensor([2.0, -1.0], dtype=torch.float64)
    assert torch.equal(found[site][0, 3, 4], row)
    assert found["1.attention.pattern"][0, 3, 4, 5] == 0
    by_hand = by_json(
        base, {"kind": "set", "site": site, "heads": [3], "positions": [4], "keys": [3, 0, 5], "value": [2, -1, 9]}
    )
    assert torch.equal(by_hand["logits"], found["logits"])


@pytest.mark.parametrize("kind", ["add", "scale", "zero", "noise", "map"])
def test_every_kind_of_edit_reaches_the_chosen_keys_and_no_others(kind):
    base, site = traced(tiny_gpt2(), random_ids(1, TOKENS)), "0.attention.scores"
    where = {"head": [0, 2], "key": [1, 2]}
    made = {
        "add": edit.add(site, 3.0, **where), "scale": edit.scale(site, 2.0, **where), "zero": edit.zero(site, **where),
        "noise": edit.noise(site, 1.0, **where), "map": edit.map_with(site, torch.exp, **where),
    }[kind]  # fmt: skip
    whole = replace(made, keys=None)
    before, found, everywhere = (trace[site] for trace in (base, base.edit(made), base.edit(whole)))
    chosen = torch.zeros(4, TOKENS, TOKENS, dtype=torch.bool)
    chosen[[0, 2], :, 1:3] = True
    assert torch.equal(found[0], torch.where(chosen, everywhere[0], before[0]))
    assert not torch.equal(found, before)


def test_a_set_and_a_knockout_of_other_keys_do_not_collide():
    base, site = traced(tiny_gpt2(), random_ids(1, TOKENS)), "0.attention.scores"
    found = base.edit(edit.set_to(site, 1.5, key=1), edit.set_to(site, 0.5, key=2), edit.knockout(site, key=0))
    last = found[site][0, 0, -1]
    assert last[:3].tolist() == [-torch.inf, 1.5, 0.5]
    with pytest.raises(EditError, match="replace the same numbers"):
        base.edit(edit.set_to(site, 1.5, key=[1, 2]), edit.set_to(site, 0.5, key=2))


def test_scores_by_key_with_padding_follow_positions_not_columns():
    model, ids = tiny_gpt2(), random_ids(1, TOKENS)
    left = torch.cat((torch.zeros(1, 2, dtype=torch.long), ids), 1)
    mask = torch.tensor([[0, 0, *[1] * TOKENS]])
    made = edit.set_to("0.attention.scores", torch.tensor([1.5, -0.5]), head=1, position=4, key=[0, 3])
    padded, plain = traced(model, left, mask).edit(made), traced(model, ids).edit(made)
    torch.testing.assert_close(padded["logits"][:, 2:], plain["logits"], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: edit.zero("0.attention.heads", key=1), "cannot be narrowed by key="),
        (
            lambda: edit.set_to("0.attention.scores", torch.ones(2), key=1),
            r"one number for each of keys \[1\], got \[2\]",
        ),
        (lambda: edit.set_to("0.attention.scores", torch.ones(2)), "one for each of the keys chosen by key="),
        (lambda: edit.set_to("0.attention.scores", 1.0, key=-1), "counts from 0"),
        (lambda: edit.set_to("0.attention.scores", 1.0, key=[]), "at least one place"),
    ],
)
def test_keys_that_make_no_sense_are_refused(made, said):
    with pytest.raises(EditError, match=said):
        traced(tiny_gpt2(), random_ids(1, 4)).edit(made())

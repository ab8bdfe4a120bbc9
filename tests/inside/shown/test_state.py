"""One state, its ledger and its path, against the library and the model's own end."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from any_edits import some_edits
from pellucid.inside.geometry import angles, step_lengths, trajectory
from pellucid.inside.shown.resources import answer
from pellucid.inside.shown.state import cell, ledger, lens, path
from pellucid.model.config import Bidirectional, MaskedLanguage, PostNorm
from pellucid.views.packing import unpacked
from tiny import VOCAB, build, configs, random_ids, tiny_gpt2, traced


@settings(max_examples=25)
@given(configs(), st.data(), st.integers(0, 4))
def test_a_cell_says_what_its_state_would_say_and_who_wrote_it(config, data, position):
    model, ids = build(config), random_ids(1, 5)
    run = traced(model, ids)
    run = run.edit(*some_edits(data.draw, model, run))
    index = data.draw(st.integers(0, len(run.states) - 1))
    found = cell(run, index, position, k=4)
    state = run.states[index][0, position]
    assert (found["index"], found["position"]) == (index, position)
    assert torch.equal(run[found["state"]], run.states[index])
    assert found["norm"] == pytest.approx(float(state.norm()))
    change = None if index == 0 else pytest.approx(float((state - run.states[index - 1][0, position]).norm()))
    assert found["change"] == change
    logits = run.with_states((*run.states[:-1], run.states[index])).logits_at(0, [position])[0]
    rows = found["top"]["rows"]
    assert [row[2] for row in rows] == logits.topk(4).indices.tolist()
    assert [row[3] for row in rows] == pytest.approx(logits.softmax(0).topk(4).values.tolist())
    account = found["ledger"]
    scale = max(1.0, float(logits.abs().max()), abs(account["value"]))
    if model.head is None:
        assert account["value"] == pytest.approx(float(logits.max()), abs=1e-9 * scale)
        assert found["note"] == ""
    else:
        assert "masked-language" in found["note"]
    assert adds_up(account) == pytest.approx(account["value"], abs=1e-9 * scale)
    sizes = [abs(amount) for _, amount in account["entries"]]
    assert sizes == sorted(sizes, reverse=True)


def adds_up(account: dict) -> float:
    others = 0.0 if account["others"] is None else account["others"]["amount"]
    return sum(amount for _, amount in account["entries"]) + others + account["remainder"]


@settings(max_examples=15)
@given(configs(), st.integers(0, 4))
def test_a_state_along_itself_is_as_long_as_it_is(config, position):
    run = traced(build(config), random_ids(1, 5))
    for index in (0, len(run.states) - 1):
        account = cell(run, index, position, k=3, along="itself")["ledger"]
        assert account["value"] == pytest.approx(float(run.states[index][0, position].norm()))
        assert adds_up(account) == pytest.approx(account["value"])
    assert cell(run, 0, position, along="nothing")["ledger"] is None


def test_without_a_head_the_state_itself_is_accounted_for():
    run = traced(tiny_gpt2(masks=(Bidirectional(),), head=None), random_ids(1, 4))
    found = cell(run, 2, 1)
    assert found["top"] is None
    assert "no head" in found["note"]
    assert found["ledger"]["value"] == pytest.approx(found["norm"])


@settings(max_examples=15)
@given(configs(), st.integers(-5, 4), st.sampled_from(["sublayer", "head", "neuron", "source"]))
def test_the_ledger_is_the_librarys_cut_short(config, position, by):
    run = traced(build(config), random_ids(1, 5))
    best = int(run.logits_at(0, [position])[0].argmax())
    found = ledger(run, position=position, by=by, k=3)
    assert found["token"] == best
    if config.head is not None and isinstance(config.head, MaskedLanguage):
        whole = run.ledger(direction=run.direction(best, position=position), by=by, position=position)
        assert "masked-language" in found["note"]
    else:
        whole = run.ledger(best, by=by, position=position)
        assert (found["of"], found["note"]) == (whole.title, "")
        least = int(run.logits_at(0, [position])[0].argmin())
        difference = ledger(run, best, least, by, position, k=1000)
        expected = run.ledger(best, minus=least, by=by, position=position)
        assert dict(difference["entries"]) == pytest.approx(dict(expected.entries))
        assert difference["others"] is None
    table = whole.top(3)
    assert found["value"] == pytest.approx(whole.value)
    assert found["entries"] == [list(row) for row in table.rows[:3]]
    if len(whole.entries) > 3:
        assert found["others"] == {"count": len(whole.entries) - 3, "amount": table.rows[3][1]}
    assert adds_up(found) == pytest.approx(whole.value)


@settings(max_examples=10)
@given(configs(), st.integers(-5, 4), st.sampled_from([-1, 0, VOCAB - 1]))
def test_the_lens_is_the_librarys(config, position, token):
    run = traced(build(config), random_ids(1, 5))
    assert lens(run, position, token) == run.lens(None if token == -1 else token, position=position).to_json()


@settings(max_examples=25)
@given(configs(), st.integers(0, 4), st.booleans())
def test_a_path_is_the_librarys(config, at, every):
    run = traced(build(config), random_ids(1, 5))
    packed = path(run, position=4 if every else at, first=at, every=every)
    last = 4 if every else at
    shown = {array.name: unpacked(array) for array in packed.arrays}
    expected = trajectory(run, first=at, last=last)
    np.testing.assert_allclose(shown["points"], expected.points, atol=1e-4)
    np.testing.assert_allclose(shown["lengths"], step_lengths(run).values[:, at : last + 1], rtol=1e-6)
    if len(run.states) > 2:
        np.testing.assert_allclose(shown["angles"], angles(run).values[:, at : last + 1], rtol=1e-5)
    else:
        assert shown["angles"].shape == (0, last + 1 - at)
    meta = packed.meta
    assert meta["positions"] == list(range(at, last + 1))
    assert meta["tokens"] == [f"{position} {run.tokens()[position]}" for position in meta["positions"]]
    assert meta["states"] == list(expected.states)
    assert meta["explained"] == pytest.approx(expected.explained.tolist())


def test_a_token_alone_has_a_plane_of_its_own():
    run = traced(tiny_gpt2(block=PostNorm()), random_ids(1, 5))
    packed = path(run, 2)
    states = torch.stack([state[0, 2] for state in run.states])
    centred = states - states.mean(0)
    _, sizes, axes = torch.linalg.svd(centred, full_matrices=False)
    points = unpacked(packed.arrays[0])[:, 0]
    np.testing.assert_allclose(np.abs(points), (centred @ axes[:2].T).abs(), atol=1e-5)
    assert packed.meta["explained"] == pytest.approx((sizes.square() / sizes.square().sum())[:2].tolist())


def test_what_cannot_be_asked_of_a_state_is_refused():
    run = traced(tiny_gpt2(), random_ids(1, 4))
    for resource, wrong, words in (
        ("cell", {"state": 5}, r"states 0\.\.4, got state=5"),
        ("cell", {"position": 4}, r"positions 0\.\.3, got position=4"),
        ("cell", {"along": "x"}, "along must be one of 'top token', 'itself', 'nothing', got 'x'"),
        ("cell", {"k": 0}, "k must lie in"),
        ("cell", {"k": 0, "along": "itself"}, "k must"),
        ("lens", {"token": 50}, r"0\.\.49, got 50"),
        ("ledger", {"by": "day"}, "a ledger goes by"),
        ("ledger", {"k": 0}, "k must be at least 1"),
        ("path", {"every": True, "first": 4}, r"positions 0\.\.3, got first=4"),
    ):
        with pytest.raises(ValueError, match=words):
            answer(run, resource, wrong)

"""Edits: what is run again equals the whole pass with the edits in it, and data come back as they went."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from any_edits import some_edits
from pellucid.front import Model
from pellucid.inside import edits as edit
from pellucid.inside.edits import Edit
from pellucid.inside.errors import EditError, SiteError
from pellucid.inside.plan import plan
from pellucid.inside.reading import all_sites, state_sites
from pellucid.model.config import Config, Init, RMSNorm, SwiGLU, Window
from pellucid.model.place import place_of
from pellucid.model.rotary import Rotary
from tiny import build, configs, passed, random_ids, tiny_gpt2, traced

LEFT = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
RIGHT = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


def whole(model, ids, mask, edits):
    """Every state of one full pass in which all edits look on."""
    seen, looks = {}, plan(model, edits).looks()

    def keeper(name):
        def keep(value, place, keys):
            seen[name] = looks[name](value, place, keys) if name in looks else value
            return seen[name]

        return keep

    names = state_sites(model)
    logits = passed(model, ids, mask, {**looks, **{name: keeper(name) for name in names}})
    return [seen[name] for name in names], logits


@pytest.mark.slow
@settings(max_examples=80)
@given(configs(), st.sampled_from([None, LEFT, RIGHT]), st.data())
def test_what_is_run_again_equals_the_whole_pass(config, mask, data):
    model, ids = build(config), random_ids(2, 5)
    other = traced(model, random_ids(2, 5, seed=9), mask)
    edits = some_edits(data.draw, model, other)
    base = traced(model, ids, mask)
    found = base.edit(*edits)
    states, logits = whole(model, ids, mask, edits)
    for ours, theirs in zip(found.states, states, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(found[f"{model.prefix}logits"], logits, atol=1e-10, rtol=1e-10)
    # One after another is the same as all at once, if they reach different sites in the order of the flow.
    step = base
    for each in edits:
        step = step.edit(each)
    for ours, theirs in zip(step.states, states, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


@pytest.mark.slow
@settings(max_examples=40)
@given(configs(), st.data())
def test_a_site_read_from_an_edited_trace_is_what_the_edited_pass_had(config, data):
    model, ids = build(config), random_ids(2, 5)
    edits = some_edits(data.draw, model, traced(model, random_ids(2, 5, seed=9)))
    found, looks, seen = traced(model, ids).edit(*edits), plan(model, edits).looks(), {}

    def keeper(name):
        def keep(value, place, keys):
            seen[name] = looks[name](value, place, keys) if name in looks else value
            return seen[name]

        return keep

    passed(model, ids, None, {site.name: keeper(site.name) for site in all_sites(model)})
    for name, value in seen.items():
        read = found[name]
        if name.endswith("scores"):
            read, value = (torch.where(found[name].isinf() | seen[name].isinf(), 0.0, x) for x in (read, value))
        torch.testing.assert_close(read, value, atol=1e-10, rtol=1e-10, msg=name)


@pytest.mark.slow
@settings(max_examples=30)
@given(configs(), st.data())
def test_the_ledger_of_an_edited_trace_still_adds_up(config, data):
    model, ids = build(config), random_ids(2, 5)
    edits = some_edits(data.draw, model, traced(model, random_ids(2, 5, seed=9)))
    found = traced(model, ids).edit(*edits)
    probe = torch.randn(config.d_model, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for by in ("sublayer", "head"):
        ledger = found.ledger(direction=probe, by=by, row=1)
        assert abs(ledger.remainder) <= 1e-9 * max(1.0, abs(ledger.value))


def test_int_3_patching_the_residual_stream():
    model, clean, corrupt = tiny_gpt2(), torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 9, 3, 4]])
    source, base = traced(model, clean), traced(model, corrupt)
    last = base["logits"][0, -1]
    for site in ("0.stream", "1.stream", "2.stream"):
        own = base.edit(edit.patch(site, base, position=2))
        assert own.states is base.states
        for position in range(4):
            found = base.edit(edit.patch(site, source, position=position))["logits"][0, -1]
            if site == "2.stream":
                expected = source["logits"][0, -1] if position == 3 else last
                assert torch.equal(found, expected)
            elif position == 0:
                assert torch.equal(found, last)
            elif site == "0.stream" and position == 1:
                assert (found - last).abs().max() > 1e-3


def test_the_whole_stream_patched_gives_the_source():
    model = tiny_gpt2()
    source, base = traced(model, random_ids(1, 6)), traced(model, random_ids(1, 6, seed=2))
    for site in state_sites(model):
        found = base.edit(edit.patch(site, source))
        torch.testing.assert_close(found["logits"], source["logits"], atol=1e-11, rtol=1e-11)


def test_a_knockout_renormalises_and_an_empty_row_attends_to_nothing():
    model = tiny_gpt2()
    base = traced(model, random_ids(1, 5))
    found = base.edit(edit.knockout("0.attention.scores", key=1, head=2))
    pattern = found["0.attention.pattern"][0]
    torch.testing.assert_close(pattern[2].sum(-1), torch.ones(5, dtype=torch.float64))
    assert (pattern[2, :, 1] == 0).all()
    torch.testing.assert_close(pattern[1], base["0.attention.pattern"][0, 1])
    nothing = base.edit(edit.knockout("0.attention.scores", key=0, position=0))
    assert (nothing["0.attention.pattern"][0, :, 0] == 0).all()
    assert (nothing["0.attention.heads"][0, 0] == 0).all()


def test_positions_before_an_edit_stay_bitwise_and_nothing_is_changed_in_place():
    model = build(Config(50, 32, 3, 24, 4, masks=(Window(3),), init=Init(0.4)))
    base = traced(model, random_ids(1, 9))
    kept = [state.clone() for state in base.states]
    found = base.edit(edit.add("1.stream", 1.0, position=5))
    for before, after in zip(kept, found.states, strict=True):
        assert torch.equal(before[:, :5], after[:, :5])
    assert all(torch.equal(state, copy) for state, copy in zip(base.states, kept, strict=True))
    assert found.states[0] is base.states[0]


def test_zeroing_every_update_leaves_the_embedding():
    model, ids = tiny_gpt2(), random_ids(1, 5)
    base = traced(model, ids)
    found = base.edit(*(edit.zero(f"{layer}.{part}.update") for layer in range(2) for part in ("attention", "ffn")))
    torch.testing.assert_close(found["2.stream"], base["0.stream"], atol=1e-13, rtol=0)


@pytest.mark.parametrize(
    "made",
    [
        lambda **at: edit.zero("0.attention.heads", head=[0, 2], **at),
        lambda **at: edit.zero("1.stream", **at),
        lambda **at: edit.set_to("1.ffn.neurons", 0.5, neuron=3, **at),
        lambda **at: edit.set_to("1.stream", torch.arange(32.0, dtype=torch.float64), **at),
        lambda **at: edit.add("0.ffn.update", torch.ones(32, dtype=torch.float64), **at),
        lambda **at: edit.scale("0.attention.writes", 2.0, head=1, **at),
        lambda **at: edit.noise("embed.token", 0.1, seed=4, **at),
        lambda **at: edit.knockout("1.attention.scores", key=[0, 1], head=1, **at),
        lambda **at: edit.set_to("0.attention.pattern", 0.25, key=1, **at),
        lambda **at: edit.map_with("1.attention.query", torch.tanh, head=1, **at),
    ],
)
def test_an_edit_everywhere_is_the_edit_at_each_position(made):
    base = traced(tiny_gpt2(), random_ids(2, 5))
    for ours, theirs in zip(base.edit(made()).states, base.edit(made(position=range(5))).states, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("narrowed", [{}, {"position": 1}])
def test_a_function_that_works_in_place_leaves_the_trace_as_it_was(narrowed):
    base = traced(tiny_gpt2(), random_ids(1, 5))
    before = [state.clone() for state in base.states]
    found = base.edit(edit.map_with("1.stream", lambda value: value.zero_(), **narrowed))
    assert torch.equal(found["1.stream"][:, 1], torch.zeros(1, 32, dtype=found["1.stream"].dtype))
    for now, then in zip(base.states, before, strict=True):
        assert torch.equal(now, then)


def test_edits_survive_json():
    model = tiny_gpt2()
    base = traced(model, random_ids(1, 5))
    made = [
        edit.zero("0.attention.heads", head=1), edit.set_to("1.ffn.neurons", 0.5, neuron=[1, 2], position=3),
        edit.add("1.stream", torch.arange(32.0)), edit.scale("0.ffn.update", 2.0),
        edit.noise("embed.token", 0.1, seed=4), edit.knockout("1.attention.scores", key=[0, 1], position=4),
        edit.patch("0.stream.mid", base, position=2),
    ]  # fmt: skip
    back = [Edit.from_json(json.loads(json.dumps(each.to_json()))) for each in made]
    for ours, theirs in zip(base.edit(*made).states, base.edit(*back).states, strict=True):
        assert torch.equal(ours, theirs)
    with pytest.raises(EditError, match="free function"):
        edit.map_with("0.stream", torch.tanh).to_json()
    with pytest.raises(EditError, match="no field hed"):
        Edit.from_json({"kind": "zero", "site": "0.stream", "hed": 1})
    with pytest.raises(EditError, match="one of zero, set"):
        Edit.from_json({"kind": "nil", "site": "0.stream"})


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: [edit.zero("0.attention.key", head=1)], "use kv_head="),
        (lambda: [edit.zero("0.stream", head=1)], "no query heads"),
        (lambda: [edit.zero("0.stream", neuron=1)], "cannot be narrowed by neuron="),
        (lambda: [edit.zero("0.attention.heads", head=4)], r"head must lie in 0\.\.3"),
        (lambda: [edit.zero("0.stream", position=-1)], "counts from 0"),
        (lambda: [edit.zero("0.stream", position=[])], "at least one place"),
        (lambda: [edit.add("0.stream", torch.ones(31))], r"fit shape \[32\] .*got \[31\]"),
        (lambda: [edit.set_to("0.stream", 1.0), edit.zero("0.stream", position=2)], "replace the same numbers"),
        (lambda: [edit.knockout("0.attention.pattern")], "hides attention scores"),
        (lambda: [edit.freeze("0.stream", traced(tiny_gpt2(), random_ids(1, 4)))], "can be frozen"),
        (lambda: [edit.zero("0.stream", layer=2)], "narrowed by head, kv_head"),
        (lambda: [edit.map_with("0.stream", lambda x: x[:, :2])], "must give back shape"),
    ],
)
def test_edits_that_make_no_sense_are_refused(made, said):
    base = traced(tiny_gpt2(), random_ids(1, 4))
    with pytest.raises(EditError, match=said):
        base.edit(*made())


def test_an_edit_of_no_site_is_refused_with_the_nearest():
    with pytest.raises(SiteError, match=r"did you mean '0\.stream'"):
        traced(tiny_gpt2(), random_ids(1, 4)).edit(edit.zero("0.strem"))


def test_order_is_kept_and_parts_that_do_not_meet_may_both_be_replaced():
    base = traced(tiny_gpt2(), random_ids(1, 4))
    one = base.edit(edit.add("0.stream", 1.0), edit.scale("0.stream", 2.0)).states[0]
    other = base.edit(edit.scale("0.stream", 2.0), edit.add("0.stream", 1.0)).states[0]
    torch.testing.assert_close(one, (base.states[0] + 1) * 2)
    torch.testing.assert_close(other, base.states[0] * 2 + 1)
    both = base.edit(edit.zero("0.attention.heads", head=0), edit.set_to("0.attention.heads", 1.0, head=1))
    assert (both["0.attention.heads"][0, :, 0] == 0).all()
    assert (both["0.attention.heads"][0, :, 1] == 1).all()


def test_noise_is_the_same_at_a_position_whatever_else_is_run():
    model = tiny_gpt2()
    made = plan(model, [edit.noise("0.stream", 1.0, seed=5)]).looks()["0.stream"]
    long, short = torch.zeros(1, 6, 32), torch.zeros(1, 2, 32)
    whole_place, part = place_of((1, 6), None, long.device), place_of((1, 2), None, long.device)
    assert torch.equal(made(long, whole_place, None)[:, :2], made(short, part, None))
    assert not torch.equal(made(long, whole_place, None)[:, 0], made(long, whole_place, None)[:, 1])


@pytest.mark.parametrize(
    ("site", "where"),
    [
        ("1.attention.heads", {"head": [3, 0]}),
        ("1.attention.writes", {"kv_head": 1}),
        ("1.attention.key", {"kv_head": [1, 0]}),
        ("0.ffn.neurons", {"neuron": [7, 2]}),
        ("0.ffn.update", {}),
    ],
)
def test_a_pooled_mean_is_narrowed_to_what_is_chosen(site, where):
    config = Config(
        50, 32, 2, 24, 4, n_kv_heads=2, d_head=6, positions=Rotary(), norm=RMSNorm(), activation=SwiGLU(),
        init=Init(0.4),
    )  # fmt: skip
    model = build(config)
    over, base = traced(model, random_ids(3, 6, seed=5)), traced(model, random_ids(2, 5))
    made = edit.mean(site, over, pooled=True, position=[1, 3], **where)
    found, before = base.edit(made)[site], base[site]
    mean = over[site].mean((0, 1))
    expected = before.clone()
    chosen = next(iter(where.values()), range(before.shape[2]))
    chosen = [chosen] if isinstance(chosen, int) else list(chosen)
    if site.endswith("writes"):
        chosen = [2, 3]  # the query heads of key-value head 1
    for position in (1, 3):
        expected[:, position, chosen] = mean[chosen]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert Edit.from_json(made.to_json()).full is True


@pytest.mark.parametrize(
    "made",
    [
        edit.zero("1.stream", position=5),
        edit.add("0.ffn.update", 1.0, position=[7, 9]),
        edit.knockout("1.attention.scores", key=6, position=2),
        Edit("set", "1.stream", value=torch.zeros(2, 32, dtype=torch.float64), at=(5, 6)),
    ],
)
def test_an_edit_that_reaches_nothing_of_the_text_is_refused(made):
    found = traced(tiny_gpt2(), random_ids(1, 5))
    with pytest.raises(EditError, match=r"reaches nothing: this text has (position|key)s 0\.\.4"):
        found.edit(made)
    longer = traced(tiny_gpt2(), random_ids(1, 10))
    assert longer.edit(made).edits == (made,)


def test_an_edited_model_may_name_positions_that_a_text_does_not_reach_yet():
    model = Model(tiny_gpt2())
    changed = model.edited(edit.zero("1.stream", position=5))
    ids = random_ids(1, 5)
    assert torch.equal(changed.trace(ids)["logits"], model.trace(ids)["logits"])
    longer = random_ids(1, 6)
    assert not torch.equal(changed.trace(longer)["logits"], model.trace(longer)["logits"])

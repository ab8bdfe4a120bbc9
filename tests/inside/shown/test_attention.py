"""What the page shows of a head, against the sites of the run and the formulas written out."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.inside import edits as edit
from pellucid.inside.edits import Edit
from pellucid.inside.shown.attention import attention
from pellucid.inside.trace import trace
from pellucid.model.config import Causal, Config, Init, Rotary, Window
from pellucid.views.packing import unpacked
from tiny import build, configs, random_ids, tiny_gpt2, traced, with_encoder

TOKENS = 6
NEAR = {"rtol": 1e-6, "atol": 1e-6}


def numbers(packed) -> dict[str, torch.Tensor]:
    return {array.name: torch.as_tensor(unpacked(array).copy()).double() for array in packed.arrays}


def by_json(trace, *edits: dict):
    return trace.edit(*(Edit.from_json(json.loads(json.dumps(each))) for each in edits))


def chosen(data, config) -> dict:
    parts = ["attention", "cross"] if config.encoder is not None else ["attention"]
    return {
        "layer": data.draw(st.integers(0, config.n_layers - 1)),
        "head": data.draw(st.integers(0, config.n_heads - 1)),
        "part": data.draw(st.sampled_from(parts)),
        "query": data.draw(st.integers(0, TOKENS - 1)),
    }


def check(run, where: dict) -> tuple[dict, dict]:
    """Every array and number against the run's own sites; gives them back."""
    found = attention(run, **where)
    arrays, meta, head, at = numbers(found), found.meta, where["head"], where["query"]
    stem = f"{run.transformer.prefix}{where['layer']}.{where['part']}"
    config = run.transformer.config
    shared = head // (config.n_heads // config.n_kv_heads)
    query = run[f"{stem}.query"][0, at, head]
    keys, values = (run[f"{stem}.{what}"][0, :, shared] for what in ("key", "value"))
    sites = {name: run[f"{stem}.{name}"][0, head, at] for name in ("scores", "pattern")}
    sites |= {"query": query, "keys": keys, "values": values, "raw": keys @ query}
    sites |= {"output": run[f"{stem}.heads"][0, at, head], "write": run[f"{stem}.writes"][0, at, head]}
    assert {*arrays} == {*sites, "visible"}
    for each, value in sites.items():
        torch.testing.assert_close(arrays[each], value, **NEAR)
    assert (meta["site"], meta["kv_head"], meta["query"]) == (stem, shared, at)
    assert meta["scale"] == config.attention_scale(where["layer"])
    assert meta["write_norm"] == pytest.approx(float(sites["write"].norm()))
    assert meta["stream_norm"] == pytest.approx(float(run[meta["state"]][0, at].norm()))
    json.dumps(meta, allow_nan=False)
    return arrays, meta


@pytest.mark.slow
@settings(max_examples=30)
@given(configs(), st.data())
def test_everything_shown_is_the_runs_own_in_every_form_of_model(config, data):
    model, where = build(config), chosen(data, config)
    base = traced(model, random_ids(1, TOKENS))
    arrays, _ = check(base, where)
    assert torch.equal(arrays["visible"] == 1, arrays["scores"].isfinite())
    check(base.edit(edit.scale(f"{model.prefix}{where['layer']}.{where['part']}.writes", 2.0)), where)


@pytest.mark.slow
@settings(max_examples=30)
@given(configs(), st.data())
def test_score_temperature_and_scaling_as_json_give_what_the_formula_says(config, data):
    model, where = build(config), chosen(data, config)
    base = traced(model, random_ids(1, TOKENS))
    before, meta = check(base, where)
    site, head, query = f"{meta['site']}.scores", where["head"], where["query"]
    visible = (before["visible"] == 1).nonzero().flatten().tolist()
    keys = data.draw(st.lists(st.sampled_from(visible), min_size=1, max_size=2, unique=True))
    values = data.draw(st.lists(st.floats(-3, 3), min_size=len(keys), max_size=len(keys)))
    temperature = data.draw(st.sampled_from([0.25, 1.0, 3.0]))
    unscaled = data.draw(st.booleans())
    edits = [{"kind": "set", "site": site, "heads": [head], "positions": [query], "keys": keys, "value": values}]
    edits += [{"kind": "scale", "site": site, "heads": [head], "factor": 1 / meta["scale"]}] if unscaled else []
    edits += [{"kind": "scale", "site": site, "heads": [head], "factor": 1 / temperature}]
    found = by_json(base, *edits)
    queries = base[f"{meta['site']}.query"][0, :, head]
    head_keys, head_values = (base[f"{meta['site']}.{what}"][0, :, meta["kv_head"]] for what in ("key", "value"))
    scores = queries @ head_keys.T
    scores = (scores * meta["scale"]).masked_fill(base[site][0, head].isinf(), -torch.inf)
    scores[query, keys] = torch.tensor(values, dtype=torch.float64)
    scores = scores / (meta["scale"] if unscaled else 1.0) / temperature
    torch.testing.assert_close(found[site][0, head], scores, rtol=1e-12, atol=1e-12)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    pattern = weights / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(found[f"{meta['site']}.pattern"][0, head], pattern, rtol=1e-12, atol=1e-12)
    after, _ = check(found, where)
    torch.testing.assert_close(after["scores"], scores[query], **NEAR)
    torch.testing.assert_close(after["output"], pattern[query] @ head_values, **NEAR)
    torch.testing.assert_close(after["raw"], before["raw"], **NEAR)


def test_a_score_edited_at_a_query_leaves_other_queries_and_heads_as_they_were():
    base = traced(tiny_gpt2(), random_ids(1, TOKENS))
    where = {"site": "0.attention.scores", "heads": [2], "positions": [3], "keys": [1]}
    found = by_json(base, {"kind": "set", "value": 4.0, **where})
    for head in range(4):
        for query in range(TOKENS):
            before, after = (numbers(attention(run, 0, head, query=query)) for run in (base, found))
            same = all(torch.equal(before[name], after[name]) for name in before)
            assert same == ((head, query) != (2, 3))
    later = [numbers(attention(run, 1, 0, query=5))["pattern"] for run in (base, found)]
    assert not torch.equal(*later)
    earlier = [numbers(attention(run, 1, 0, query=2))["pattern"] for run in (base, found)]
    assert torch.equal(*earlier)


def test_what_the_mask_hides_is_told_from_what_an_edit_hides():
    base = traced(tiny_gpt2(masks=(Window(3),)), random_ids(1, TOKENS))
    found = numbers(attention(base.edit(edit.knockout("0.attention.scores", key=3)), 0, 1, query=4))
    assert found["visible"].tolist() == [0, 0, 1, 1, 1, 0]
    assert found["scores"].isfinite().tolist() == [False, False, True, False, True, False]
    assert found["pattern"][3] == 0


def test_cross_attention_has_the_sources_keys():
    config = with_encoder(Config(50, 32, 2, 24, 4, 2, masks=(Causal(),), init=Init(0.4)))
    model = build(config)
    source = traced(model.encoder, random_ids(1, 9, seed=3))
    run = trace(model, random_ids(1, 4), source=source)
    found = attention(run, 1, 3, "cross", 2)
    arrays = numbers(found)
    assert arrays["keys"].shape == (9, 6)
    assert arrays["visible"].tolist() == [1] * 9
    assert found.meta["site"] == "decoder.1.cross"
    assert found.meta["softmax"]["pairs"] == 36
    torch.testing.assert_close(arrays["pattern"], run["decoder.1.cross.pattern"][0, 3, 2], **NEAR)
    assert attention(run, 1, 3, "attention", 2).meta["site"] == "decoder.1.attention"


def test_padding_is_left_out():
    model, ids = tiny_gpt2(), random_ids(1, TOKENS)
    mask = torch.tensor([[0, 0, *[1] * TOKENS]])
    padded = traced(model, torch.cat((torch.zeros(1, 2, dtype=torch.long), ids), 1), mask)
    ours, theirs = attention(padded, 1, 2, query=3), attention(traced(model, ids), 1, 2, query=3)
    for one, other in zip(numbers(ours).values(), numbers(theirs).values(), strict=True):
        torch.testing.assert_close(one, other, **NEAR)
    assert ours.meta["softmax"] == pytest.approx(theirs.meta["softmax"])


def test_the_lessons_softmax_experiment_on_a_heads_own_numbers():
    base = traced(tiny_gpt2(), random_ids(1, TOKENS))
    found = attention(base, 1, 2).meta["softmax"]
    query, key = base["1.attention.query"][0, :, 2], base["1.attention.key"][0, :, 2]
    products = [[float(query[t] @ key[s]) for s in range(t + 1)] for t in range(TOKENS)]
    every = [each for row in products for each in row]
    mean = sum(every) / len(every)
    assert found["pairs"] == len(every) == 21
    assert found["variance"] == pytest.approx(sum((each - mean) ** 2 for each in every) / 21)
    assert found["variance_scaled"] == pytest.approx(found["variance"] / 8)

    def softmax(row: list[float]) -> list[float]:
        whole = sum(map(math.exp, row))
        return [math.exp(each) / whole for each in row]

    for name, scale in (("", 1.0), ("_scaled", 8**-0.5)):
        rows = [softmax([each * scale for each in row]) for row in products[1:]]
        entropies = [-sum(p * math.log(p) for p in row) for row in rows]
        assert found[f"entropy{name}"] == pytest.approx(sum(entropies) / 5)
        assert found[f"largest{name}"] == pytest.approx(sum(map(max, rows)) / 5)
    assert found["entropy"] < found["entropy_scaled"]
    assert found["query_square"] == pytest.approx(sum(float(each) ** 2 for each in query.flatten()) / 48)


@pytest.mark.parametrize("width", [64, 128])
def test_512_tokens_stay_small(width):
    config = Config(50, 512, 1, 32, 2, d_head=width, positions=Rotary(10000.0), init=Init(0.4))
    run = traced(build(config, dtype=torch.float32), random_ids(1, 512))
    found = attention(run, 0, 1, query=400)
    assert len(found.to_bytes()) < 400_000
    arrays = {array.name: array for array in found.arrays}
    keys = torch.as_tensor(unpacked(arrays["keys"]).copy()).double()
    torch.testing.assert_close(keys, run["0.attention.key"][0, :, 1].double(), rtol=0, atol=arrays["keys"].error + 1e-9)
    assert arrays["keys"].kind == {64: "float32", 128: "float16"}[width]


def test_the_sentence_says_what_is_strongest():
    made = edit.set_to("0.attention.scores", torch.tensor([0.0, 1.0, 2.0]).log(), head=1, position=2, key=[0, 1, 2])
    base = traced(tiny_gpt2(), torch.tensor([[7, 8, 9]]))
    says = attention(base.edit(made), 0, 1).meta["says"]
    assert says == "9 at position 2 attends 67% to 9 (2) and 33% to 8 (1): as spread as 1.9 equal keys."
    steep = edit.scale("0.attention.scores", 100.0, head=1)
    says = attention(base.edit(steep), 0, 1).meta["says"]
    assert says.endswith("attends 100% to 8 (1): as spread as 1.0 equal keys.")
    alone = attention(base.edit(edit.knockout("0.attention.scores", key=0, position=0)), 0, 1, query=0)
    assert "attends to nothing" in alone.meta["says"]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"layer": 2}, r"layer must lie in 0\.\.1, got 2"),
        ({"layer": -1}, r"layer must lie in 0\.\.1, got -1"),
        ({"head": 4}, r"head must lie in 0\.\.3, got 4"),
        ({"part": "cross"}, "part must be attention in this model, got 'cross'"),
        ({"query": 6}, r"positions 0\.\.5, got position=6"),
    ],
)
def test_what_is_not_there_is_refused(where, said):
    with pytest.raises(ValueError, match=said):
        attention(traced(tiny_gpt2(), random_ids(1, TOKENS)), **where)

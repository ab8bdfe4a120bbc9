"""Path patching: sums of edges where the model is linear, nodes where all edges are patched, and the known circuit."""

import pytest
import torch
from hypothesis import given, settings
from tests.inside.test_edges import prenorm, two
from tests.tiny import build, random_ids, tiny_gpt2, traced

from pellucid.inside.circuit_by_hand import START, induction_circuit
from pellucid.inside.edits import freeze, patch
from pellucid.inside.errors import GraphError
from pellucid.inside.graph import graph_of
from pellucid.inside.metrics import logit
from pellucid.inside.path_patching import path_patch
from pellucid.inside.trace import trace
from pellucid.model.config import Config, Init, Relu


def linear(seed: int):
    """Two runs in which everything that is not linear is held: patterns and norms frozen, every neuron left on."""
    config = Config(50, 16, 3, 24, 2, n_kv_heads=1, activation=Relu(), init=Init(0.1))
    model = build(config, seed)
    for name, weight in model.named_parameters():
        if name.endswith("up.bias"):
            weight.fill_(100.0)
    base, source = (traced(model, random_ids(2, 5, seed)) for seed in (1, 2))
    sites = [name for name in base.names if name.endswith((".pattern", "scale"))]
    return [run.edit(*(freeze(site, base, 0) for site in sites)) for run in (base, source)]


@pytest.mark.slow
def test_edges_add_up_to_the_node_in_a_linear_model():
    base, source = linear(0)
    metric = logit(3, minus=9)
    each = path_patch(base, source, metric)
    nodes = path_patch(base, source, metric, together=True)
    assert float(each.values.abs().max()) > 0.01
    torch.testing.assert_close(each.values.sum(1), nodes.values[:, 0], rtol=1e-9, atol=1e-9)
    # A cut of the graph holds the whole difference: what leaves the embeddings, what reaches the end.
    assert float(each.values[0].sum()) == pytest.approx(1.0, abs=1e-9)


def test_edges_do_not_add_up_where_the_model_is_not_linear():
    model = tiny_gpt2()
    base, source = (traced(model, random_ids(2, 6, seed)) for seed in (1, 2))
    metric = logit(3, minus=9)
    each, nodes = path_patch(base, source, metric), path_patch(base, source, metric, together=True)
    assert float((each.values.sum(1) - nodes.values[:, 0]).abs().max()) > 1e-3


@pytest.mark.slow
@given(prenorm(forms="decoder"))
@settings(max_examples=4)
def test_edges_backwards_in_depth_are_zero_and_all_of_them_are_the_node(config):
    base, source = two(config, rows=1)
    graph, metric = graph_of(base.transformer), logit(3, minus=7)
    some = [graph.senders[at].name for at in (0, len(graph.senders) // 2, -1)]
    found = path_patch(base, source, metric, some)
    exists = graph.exists[[graph.sender[name] for name in found.rows]]
    assert set(found.values[~exists].tolist()) <= {0.0}
    assert found.columns == tuple(receiver.name for receiver in graph.receivers)
    together = path_patch(base, source, metric, some, together=True)
    before, after = (float(metric.of(run)) for run in (base, source))
    last = base.edit(patch(f"{graph.senders[-1].part}.update", source))
    direct = (float(metric.of(last)) - before) / (after - before)
    if graph.senders[-1].part.endswith("ffn"):
        assert together[some[-1], 0] == pytest.approx(direct, abs=1e-8)
        assert found[some[-1], "final" if not base.transformer.prefix else "decoder.final"] == pytest.approx(
            direct, abs=1e-8
        )


def test_the_hand_built_circuit_is_the_only_path():
    model = induction_circuit().double()
    clean, corrupted = prompts()
    base, source = trace(model, corrupted), trace(model, clean)
    found = path_patch(base, source, logit(9))
    named = {(s, r): found[s, r] for s in found.rows for r in found.columns if abs(found[s, r]) > 1e-9}
    # Denoising: only where all that comes before is right already does one edge repair the copy.
    assert named == {
        ("0.attention head 1", "1.attention.key kv_head 0"): pytest.approx(1.0),
        ("1.attention head 0", "final"): pytest.approx(1.0),
        ("embed", "0.attention.value kv_head 1"): pytest.approx(1.0),
    }
    broken = path_patch(source, base, logit(9))
    torch.testing.assert_close(broken.values, found.values)  # noising breaks it at the same edges
    assert broken.base == pytest.approx(found.source)


def prompts():
    """START .. 5 9 .. 5, whose copy is 9; and the same text with another token before the 9."""
    clean = torch.tensor([[START, 3, 5, 9, 4, 7, 5]])
    corrupted = clean.clone()
    corrupted[0, 2] = 8
    return clean, corrupted


def test_rows_are_averaged_and_padding_is_left_out():
    model = tiny_gpt2()
    ids = [random_ids(2, 6, seed) for seed in (1, 2)]
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    both = [traced(model, each, mask) for each in ids]
    rows = [[traced(model, each[:1, 2:]) for each in ids], [traced(model, each[1:]) for each in ids]]
    metric = logit(3, minus=9)
    names = ("*.attention head *", ["1.attention.query head 0", "final"])
    whole = path_patch(*both, metric, *names)
    alone = [path_patch(*pair, metric, *names) for pair in rows]
    raw = sum(each.values * (each.source - each.base) for each in alone)
    scale = sum(each.source - each.base for each in alone)
    torch.testing.assert_close(whole.values, raw / scale)


def test_what_is_no_question_is_refused():
    model = tiny_gpt2()
    base, source = (traced(model, random_ids(1, 6, seed)) for seed in (1, 2))
    for words, message in [
        ({"senders": "0.attention head 9"}, r"no sender fits '0.attention head 9'; did you mean '0.attention head \d'"),
        ({"receivers": "9-12.ffn"}, "no receiver fits '9-12.ffn'"),
        ({"receivers": []}, "at least one receiver"),
    ]:
        with pytest.raises(GraphError, match=message):
            path_patch(base, source, logit(3), **words)
    with pytest.raises(GraphError, match="in both runs"):
        path_patch(base, base, logit(3))

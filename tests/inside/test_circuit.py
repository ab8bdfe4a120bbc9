"""Circuits: the known one is found, searches agree with slow ones, and what a circuit says of itself is so."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.inside.test_edges import prenorm, two
from tests.inside.test_path_patching import prompts
from tests.tiny import random_ids, tiny_gpt2, traced

from pellucid.inside.circuit import Circuit, measured, metric_of
from pellucid.inside.circuit_by_hand import INDUCTION, PREVIOUS, START, induction_circuit
from pellucid.inside.circuit_search import find_circuit
from pellucid.inside.circuits import attention_of
from pellucid.inside.eap import edge_scores
from pellucid.inside.edges import Wiring, run_edges
from pellucid.inside.errors import GraphError
from pellucid.inside.graph import Edge
from pellucid.inside.metrics import divergence, logit
from pellucid.inside.trace import trace

COPY = {
    Edge("embed", "0.attention.value kv_head 1"),
    Edge("0.attention head 1", "1.attention.key kv_head 0"),
    Edge("1.attention head 0", "final"),
}
TEXT = {Edge("embed", "1.attention.query head 0"), Edge("embed", "1.attention.value kv_head 0")}
METRIC = logit(3, minus=7)


def by_hand(sharpness: float = 1.0):
    """The hand-built circuit's runs: the copy, one token before it changed, and another text."""
    model = induction_circuit().double()
    for layer, head in (PREVIOUS, INDUCTION):
        attention_of(model, layer).W_Q[head].mul_(sharpness)
    clean, corrupted = prompts()
    other = torch.tensor([[START, 6, 2, 8, 1, 3, 8]])
    return [trace(model, ids) for ids in (clean, corrupted, other)]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "words"), [("patching", {"size": 9}), ("acdc", {"threshold": 1e-6})])
def test_the_known_circuit_is_found_and_nothing_else(method, words):
    clean, corrupted, other = by_hand()
    for run, edges in ((corrupted, COPY), (other, COPY | TEXT)):
        circuit = find_circuit(clean, run, logit(9), method, **words)
        assert set(circuit.edges) == edges
        assert circuit.faithfulness == pytest.approx(1.0, abs=1e-9)
        assert circuit.of == 46
        assert circuit.nodes == ("embed", "0.attention head 1", "1.attention head 0")
        for head in circuit.nodes:  # without any of its nodes nothing is left of the copy
            less = {edge: 1.0 for edge in circuit.edges if edge.sender != head}
            assert measured(Wiring(clean, run, logit(9)), less, "").faithfulness == pytest.approx(0.0, abs=1e-9)
        minimal = circuit.minimality()
        assert set(minimal.column("without")) == set(circuit.nodes)
        assert minimal.column("change") == pytest.approx([float(logit(9).of(clean))] * 3)
        by_edge = circuit.minimality("edge")
        assert set(by_edge.column("without")) == set(map(str, edges))
        assert min(by_edge.column("change")) == pytest.approx(float(logit(9).of(clean)))
        complete = circuit.completeness()
        assert complete.column("apart") == pytest.approx([0.0] * len(complete), abs=1e-9)
        assert {"0.attention head 1", "0.attention head 1, 1.attention head 0"} <= set(complete.column("without"))


def test_gradients_find_it_where_its_patterns_are_soft_and_not_where_they_are_saturated():
    clean, corrupted, other = by_hand(1 / 200)
    for run, edges in ((corrupted, COPY), (other, COPY | TEXT)):
        circuit = find_circuit(clean, run, logit(9), "eap-ig", size=len(edges))
        assert set(circuit.edges) == edges
        assert circuit.faithfulness == pytest.approx(1.0, abs=2e-3)
    clean, corrupted, _ = by_hand()
    assert find_circuit(clean, corrupted, logit(9), "eap", size=5).faithfulness == pytest.approx(0.0, abs=1e-9)


def test_edge_by_edge_is_what_the_batched_search_does():
    model = tiny_gpt2(n_heads=2, n_kv_heads=1)
    clean, corrupted = (traced(model, random_ids(2, 5, seed)) for seed in (1, 2))
    found = find_circuit(clean, corrupted, METRIC, "acdc", threshold=0.3)
    wiring = Wiring(clean, corrupted, METRIC)
    graph = wiring.graph
    kept = list(graph.edges())
    whole, far = float(METRIC.of(clean).mean()), 0.0
    for receiver in reversed(graph.receivers):
        for sender in reversed(graph.senders):
            edge = Edge(sender.name, receiver.name)
            if edge not in kept:
                continue
            leads = receiver.name == "final" or any(other.sender in receiver.feeds for other in kept)
            without = [other for other in graph.edges() if other not in kept or other == edge]
            apart = abs(float(run_edges(clean, corrupted, [without], METRIC).mean()) - whole)
            if not leads or apart - far < 0.3:
                kept.remove(edge)
                far = apart if leads else far
    assert 3 < len(found.edges) < found.of
    assert set(found.edges) == set(graph.edges(graph.connected(graph.mask(kept))))


@given(prenorm(forms="decoder"), st.integers(0, 9))
@settings(max_examples=5)
def test_what_lies_on_no_path_carries_nothing(config, seed):
    base, other = two(config, rows=1)
    wiring = Wiring(base, other, METRIC)
    draw = torch.Generator().manual_seed(seed)
    some = torch.rand(5, *wiring.graph.exists.shape, generator=draw) < torch.linspace(0.1, 0.8, 5)[:, None, None]
    some &= wiring.graph.exists
    pruned = torch.stack([wiring.graph.connected(each) for each in some])
    assert bool((pruned <= some).all())
    torch.testing.assert_close(metric_of(wiring, pruned), metric_of(wiring, some), rtol=1e-9, atol=1e-9)
    for each, kept in zip(some, pruned, strict=True):
        assert set(wiring.graph.edges(kept)) == on_a_path(wiring.graph, set(wiring.graph.edges(each)))


def on_a_path(graph, edges):
    """The edges that a walk from the embeddings passes, and from which one leads to the end."""
    feeds = {receiver.name: receiver.feeds for receiver in graph.receivers}
    found, reached = set(), set()
    waiting = [graph.senders[0].name]
    while waiting:
        sender = waiting.pop()
        if sender not in reached:
            reached.add(sender)
            found |= {edge for edge in edges if edge.sender == sender}
            waiting += [fed for edge in found if edge.sender == sender for fed in feeds[edge.receiver]]
    leads = {graph.receivers[-1].name}
    for receiver in reversed(graph.receivers):
        if any(edge.sender in feeds[receiver.name] and edge.receiver in leads for edge in edges):
            leads.add(receiver.name)
    return {edge for edge in found if edge.receiver in leads}


def test_a_larger_circuit_holds_the_smaller_and_all_edges_are_the_model():
    model = tiny_gpt2()
    clean, corrupted = (traced(model, random_ids(2, 5, seed)) for seed in (1, 2))
    scores = edge_scores(clean, corrupted, METRIC)
    small, large = (find_circuit(clean, corrupted, METRIC, scores, size=size) for size in (20, 60))
    assert set(small.edges) < set(large.edges)
    assert len(large.edges) <= 60
    assert small.scores == tuple(sorted(small.scores, key=abs, reverse=True))
    assert small.scores[0] == scores[small.edges[0]]
    every = find_circuit(clean, corrupted, METRIC, scores, threshold=1e-30)
    assert len(every.edges) == every.of
    assert every.faithfulness == pytest.approx(1.0, abs=1e-9)
    strong = find_circuit(clean, corrupted, METRIC, scores, threshold=0.5)
    assert min(map(abs, strong.scores)) >= 0.5
    for circuit in (small, large, strong):
        others = [edge for edge in every.edges if edge not in circuit.edges]
        own = float(run_edges(clean, corrupted, [others], METRIC).mean())
        assert circuit.measure.own == pytest.approx(own)
        whole, empty = (float(METRIC.of(run).mean()) for run in (clean, corrupted))
        assert circuit.faithfulness == pytest.approx((own - empty) / (whole - empty))


def test_completeness_leaves_the_same_nodes_out_of_circuit_and_model():
    model = tiny_gpt2()
    clean, corrupted = (traced(model, random_ids(2, 5, seed)) for seed in (1, 2))
    circuit = find_circuit(clean, corrupted, METRIC, "eap", size=30)
    assert circuit.wiring is not None
    every, own = list(circuit.wiring.graph.edges()), set(circuit.edges)
    table = circuit.completeness(subsets=4, seed=2)
    assert max(len(names.split(", ")) for names in table.column("without")) > 1
    for names, *values in table:
        left_out = str(names).split(", ")
        without = [edge for edge in every if edge.sender in left_out]
        found = run_edges(clean, corrupted, [[e for e in every if e not in own or e in without], without], METRIC).mean(
            1
        )
        assert values == pytest.approx([*found.tolist(), abs(float(found[0] - found[1]))])
    assert table.rows == circuit.completeness(4, 2).rows
    assert table.rows != circuit.completeness(4, 3).rows
    alone = measured(circuit.wiring, {Edge("embed", "final"): 1.0}, "by hand")
    with pytest.raises(GraphError, match="no nodes to leave out"):
        alone.completeness()


def test_a_divergence_is_searched_as_well():
    clean, corrupted, _ = by_hand()
    circuit = find_circuit(clean, corrupted, divergence(clean), "acdc", threshold=1e-3)
    assert set(circuit.edges) == COPY
    assert circuit.measure.whole == pytest.approx(0.0, abs=1e-9)


def test_a_circuit_is_kept_as_plain_data_and_given_runs_again():
    clean, corrupted, other = by_hand()
    circuit = find_circuit(clean, corrupted, logit(9), "patching", threshold=1.0)
    back = Circuit.from_json(json.loads(json.dumps(circuit.to_json())))
    assert back.to_json() == circuit.to_json()
    assert str(back) == str(circuit)
    assert back.nodes == circuit.nodes
    with pytest.raises(GraphError, match="has no runs"):
        back.minimality()
    with pytest.raises(GraphError, match="by 'node' or 'edge', got 'head'"):
        circuit.minimality("head")
    again = back.on(clean, corrupted, logit(9))
    assert again.measure == circuit.measure
    assert again.completeness(3, 1).rows == circuit.completeness(3, 1).rows
    assert back.on(clean, other, logit(9)).faithfulness == pytest.approx(0.0, abs=1e-9)  # it lacks the text's edges
    with pytest.raises(GraphError, match="lacks or misspells 'edges'"):
        Circuit.from_json({})


def test_it_is_drawn_and_told():
    clean, corrupted, _ = by_hand()
    circuit = find_circuit(clean, corrupted, logit(9), "patching", threshold=1.0)
    assert circuit.to_mermaid().splitlines() == [
        "flowchart BT",
        '  n0["embed"]',
        '  n1["0.attention head 1"]',
        '  n2["1.attention head 0"]',
        '  n3["final"]',
        "  n0 -- value --> n1",
        "  n1 -- key --> n2",
        "  n2 --> n3",
    ]
    assert "3 of 46 edges by patching, threshold 1" in circuit.table().note
    assert len(circuit.top(2)) == 2


def test_keys_that_heads_share_lead_to_those_of_them_that_write():
    model = tiny_gpt2(n_kv_heads=2)
    clean, corrupted = (traced(model, random_ids(1, 5, seed)) for seed in (1, 2))
    edges = {Edge("embed", "1.attention.key kv_head 1"): 2.0, Edge("1.attention head 3", "final"): 1.0}
    circuit = measured(Wiring(clean, corrupted, METRIC), edges, "by hand")
    assert circuit.feeds["1.attention.key kv_head 1"] == ("1.attention head 2", "1.attention head 3")
    assert circuit.to_mermaid().splitlines()[4:] == ["  n0 -- key --> n1", "  n1 --> n2"]


def test_what_is_no_search_is_refused():
    model = tiny_gpt2()
    clean, corrupted = (traced(model, random_ids(1, 5, seed)) for seed in (1, 2))
    for words, message in [
        ({"method": "guess", "size": 3}, r"'eap-ig', 'eap', 'patching', 'acdc' or by edge scores, got 'guess'"),
        ({}, "'eap-ig' needs a size or a threshold"),
        ({"size": 3, "threshold": 1.0}, "one of the two"),
        ({"method": "acdc", "size": 3}, "'acdc' needs a threshold"),
        ({"size": 0}, "a size is at least 1"),
        ({"threshold": 0.0}, "a threshold above 0"),
    ]:
        with pytest.raises(GraphError, match=message):
            find_circuit(clean, corrupted, METRIC, **words)
    with pytest.raises(GraphError, match="in both runs"):
        find_circuit(clean, clean, METRIC, size=3)
    small = tiny_gpt2(n_layers=1)
    scores = edge_scores(*(traced(small, random_ids(1, 5, seed)) for seed in (1, 2)), METRIC)
    with pytest.raises(GraphError, match="another model"):
        find_circuit(clean, corrupted, METRIC, scores, size=3)

"""The engine of edges: against node patching, against streams put together by hand, and against whole runs."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.tiny import build, configs, random_ids, tiny_gpt2, traced, with_encoder

from pellucid.inside.aligned import pairs
from pellucid.inside.edges import Wiring, run_edges
from pellucid.inside.edits import add, freeze, map_with, patch, scale, zero
from pellucid.inside.errors import GraphError
from pellucid.inside.graph import Edge, graph_of
from pellucid.inside.metrics import logit
from pellucid.inside.trace import trace
from pellucid.model.config import Parallel, PostNorm, PreNorm

LEFT = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]])
RIGHT = LEFT.flip(1)
METRIC = logit(3, minus=7)


@st.composite
def prenorm(draw, **kinds):
    config = draw(configs(**kinds))
    if isinstance(config.block, PostNorm):
        config = replace(config, block=PreNorm())
        if config.encoder is not None:
            config = replace(config, encoder=replace(config.encoder, block=PreNorm()))
    return config


def two(config, mask=None, rows=3):
    """Two runs of one model; of an encoder-decoder on the same source text."""
    model = build(config)
    return [traced(model, random_ids(rows, 5, seed), mask) for seed in (1, 2)]


@given(prenorm(), st.sampled_from([None, LEFT, RIGHT]))
@settings(max_examples=8)
def test_all_edges_are_the_other_run_and_none_are_the_base(config, mask):
    base, other = two(config, mask)
    every = list(graph_of(base.transformer).edges())
    none, both = run_edges(base, other, [[], every], METRIC)
    torch.testing.assert_close(none, METRIC.of(base).double(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(both, METRIC.of(other).double(), rtol=1e-9, atol=1e-9)


@given(prenorm(), st.sampled_from([None, LEFT, RIGHT]), st.integers(0, 99))
@settings(max_examples=8)
def test_all_edges_out_of_a_sender_are_its_write_patched(config, mask, which):
    base, other = two(config, mask)
    graph = graph_of(base.transformer)
    sender = graph.senders[which % len(graph.senders)]
    out = [edge for edge in graph.edges() if edge.sender == sender.name]
    (found,) = run_edges(base, other, [out], METRIC)
    head = int(sender.name.rpartition(" ")[2]) if " head " in sender.name else None
    site = f"{base.transformer.prefix}0.stream" if sender.part == "embed" else f"{sender.part}.update"
    for row in range(3):
        if head is not None:
            edited = base.edit(patch(f"{sender.part}.writes", other, row, head=head))
        else:
            edited = base.edit(patch(site, other, row))
        torch.testing.assert_close(found[row], METRIC.of(edited)[row].double(), rtol=1e-9, atol=1e-9)


def by_hand(base, other, sender, receiver):
    """One edge: the receiver's own stream put together from the recorded ones, and put in by an edit."""
    model, part = base.transformer, receiver.part
    head = None if " head " not in sender.name else int(sender.name.rpartition(" ")[2])
    site = "0.stream" if sender.part == "embed" else f"{sender.part}.{'update' if head is None else 'writes'}"
    change = other[site] - base[site]
    change = change if head is None else change[:, :, head]
    layer, steps = int(part.partition(".")[0]) if part != "final" else None, model.steps
    if layer is None:
        return model.logits(base.states[-1] + change, base.present())[:, -1]
    step = next(step for step in steps if any(each.name == part for each in step.parts))
    sublayer = next(each for each in step.parts if each.name == part)
    norm = step.shared if step.shared is not None else sublayer.norm
    normed = norm(base.states[steps.index(step)] + change)
    if part.endswith("ffn"):
        return base.edit(map_with(f"{part}.input", lambda _: normed, whole=True))["logits"][:, -1]
    what, number = receiver.name.split(".")[2].split(" ")[0], int(receiver.name.rpartition(" ")[2])
    edited = base.edit(map_with(f"{part}.input", lambda _: normed, whole=True))
    made = edited[f"{part}.{what}"]  # all of the part read the stream of the one

    def put(value):
        value = value.clone()
        value[:, :, number] = made[:, :, number]
        return value

    return base.edit(map_with(f"{part}.{what}", put, whole=True))["logits"][:, -1]


@given(prenorm(forms="decoder"), st.data())
@settings(max_examples=8)
def test_one_edge_is_what_its_receiver_would_read(config, data):
    base, other = two(config)
    assume(config.encoder is None)
    graph = graph_of(base.transformer)
    edges = list(graph.edges())
    edge = edges[data.draw(st.integers(0, len(edges) - 1))]
    (found,) = run_edges(base, other, [[edge]], METRIC)
    sender, receiver = graph.senders[graph.sender[edge.sender]], graph.receivers[graph.receiver[edge.receiver]]
    logits = by_hand(base, other, sender, receiver)
    torch.testing.assert_close(found, logits[:, 3] - logits[:, 7], rtol=1e-9, atol=1e-9)


def slowly(base, other, patched, row=0):
    """The logits of one row where each receiver, one by one, is given the sum of what its edges bring."""
    model, graph, here = base.transformer, graph_of(base.transformer), base.present(row)
    steps = dict(enumerate(model.steps))
    theirs, now = written(other, graph, row), written(base, graph, row)
    at_base, patched = dict(now), set(patched)

    def stream(receiver):
        x = base.states[receiver.state][row].clone()
        for sender in graph.senders:
            if sender.state <= receiver.state:  # what nobody sends, the biases, is what is left of the base's stream
                source = theirs if (sender.name, receiver.name) in patched else now
                x += source[sender.name] - at_base[sender.name]
        return x[None]

    for index, step in steps.items():
        new = {}
        for part in step.parts:
            own = [receiver for receiver in graph.receivers if receiver.part == part.name]
            seen, put = {}, {}
            for receiver in own:
                looks = {f"{part.name}.{what}": keeper(seen, what) for what in ("query", "key", "value", "update")}
                part(step.source(stream(receiver), here), replace(here, looks=looks))
                what, number = receiver.name.rpartition(".")[2].split(" ")[0], receiver.name.rpartition(" ")[2]
                if what in ("query", "key", "value"):
                    put.setdefault(what, seen[what].clone())[:, :, int(number)] = seen[what][:, :, int(number)]
            if not put:
                new[part.name] = seen["update"][0]
                continue
            looks = {f"{part.name}.{what}": lambda _v, _p, _k, value=value: value for what, value in put.items()}
            looks[f"{part.name}.writes"] = keeper(seen, "writes")
            part(step.source(base.states[index][row : row + 1], here), replace(here, looks=looks))
            new |= {f"{part.name} head {head}": seen["writes"][0, :, head] for head in range(part.H)}
        now |= new
    return model.logits(stream(graph.receivers[-1]), here)[0]


def keeper(seen, what):
    def keep(value, _place, _keys):
        seen[what] = value
        return value

    return keep


def written(run, graph, row):
    found = {}
    for sender in graph.senders:
        if sender.part == "embed":
            found[sender.name] = run.states[0][row]
        elif " head " in sender.name:
            found[sender.name] = run[f"{sender.part}.writes"][row, :, int(sender.name.rpartition(" ")[2])]
        else:
            found[sender.name] = run[f"{sender.part}.update"][row]
    return found


@given(prenorm(), st.integers(0, 9), st.sampled_from([0.1, 0.5, 0.9]))
@settings(max_examples=8)
def test_any_set_of_edges_is_what_one_receiver_after_another_would_read(config, seed, share):
    base, other = two(config, rows=2)
    graph = graph_of(base.transformer)
    draw = torch.Generator().manual_seed(seed)
    sets = torch.rand(2, *graph.exists.shape, generator=draw) < share
    found = run_edges(base, other, [graph.edges(some) for some in sets], METRIC)
    for at, some in enumerate(sets):
        logits = slowly(base, other, graph.edges(some), row=1)[-1]
        torch.testing.assert_close(found[at, 1], logits[3] - logits[7], rtol=1e-9, atol=1e-9)


@given(prenorm(), st.integers(0, 9))
@settings(max_examples=4)
def test_sets_run_by_themselves_or_side_by_side_alike(config, seed):
    base, other = two(config, RIGHT)
    exists = graph_of(base.transformer).exists
    draw = torch.Generator().manual_seed(seed)
    sets = (torch.rand(6, *exists.shape, generator=draw) < 0.1).double()
    whole = Wiring(base, other, METRIC).run(sets)
    narrow = Wiring(base, other, METRIC, budget=1)
    assert len(narrow.pairs) == 3
    assert not narrow.keeps
    torch.testing.assert_close(narrow.run(sets), whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("block", [PreNorm(), Parallel(1), Parallel(2)])
def test_parts_of_a_parallel_block_do_not_read_each_other(block):
    graph = graph_of(tiny_gpt2(block=block))
    pair = Edge("0.attention head 1", "0.ffn")
    assert (pair in set(graph.edges())) is isinstance(block, PreNorm)
    assert Edge("0.ffn", "1.attention.query head 0") in set(graph.edges())
    assert Edge("0.ffn", "0.attention.query head 0") not in set(graph.edges())


def test_the_graph_of_a_small_model_is_as_large_as_it_should_be():
    graph = graph_of(tiny_gpt2(n_kv_heads=2))
    assert len(graph.senders) == 1 + 2 * (4 + 1)
    assert len(graph.receivers) == 2 * (4 + 2 + 2 + 1) + 1
    # 8 readers in attention, then one, after 1, 5, 6, 10 and 11 senders
    assert int(graph.exists.sum()) == 8 * 1 + 5 + 8 * 6 + 10 + 11
    assert graph.receivers[graph.receiver["1.attention.value kv_head 1"]].feeds == (
        "1.attention head 2",
        "1.attention head 3",
    )


def test_edits_of_the_base_are_in_force():
    model = tiny_gpt2()
    base, other = (traced(model, random_ids(1, 6, seed)) for seed in (1, 2))
    changed = base.edit(zero("0.attention.heads", head=1), scale("1.ffn.input.scale", 0.5), add("0.stream", 0.3))
    frozen = changed.edit(freeze("1.attention.pattern", base), scale("final.normed", 2.0))
    none, one = run_edges(frozen, other, [[], [("0.attention head 1", "final")]], METRIC)
    torch.testing.assert_close(none, METRIC.of(frozen))
    end = frozen.states[-1] + other["0.attention.writes"][:, :, 1]
    logits = 2 * model.final_norm(end) @ model.W_U.T
    torch.testing.assert_close(one, logits[:, -1, 3] - logits[:, -1, 7])


def test_what_cannot_be_compared_is_refused():
    model = tiny_gpt2()
    base, other = (traced(model, random_ids(2, 6, seed)) for seed in (1, 2))
    cases = [
        (base, traced(tiny_gpt2(), random_ids(2, 6)), "traces of one model"),
        (base, traced(model, random_ids(1, 6)), "as many rows, got 2 and 1"),
        (base, traced(model, random_ids(2, 5)), "row 0 must have as many tokens in both runs, got 6 and 5"),
        (base.edit(add("1.stream.mid", 1.0)), other, "an edit of 1.stream.mid is no write of a head"),
        (base.edit(zero("0.attention.update")), other, "an edit of 0.attention.update"),
        (base.edit(map_with("0.ffn.up", torch.sin, whole=True)), other, "the whole of 0.ffn.up"),
    ]
    for one, two, message in cases:
        with pytest.raises(GraphError, match=message):
            run_edges(one, two, [[]], METRIC)
    for edge, message in [
        (("embedd", "final"), "no sender is 'embedd', did you mean 'embed'"),
        (("embed", "2.ffn"), "no receiver is '2.ffn'"),
        (("1.ffn", "0.ffn"), "'0.ffn' stands before what '1.ffn' writes"),
    ]:
        with pytest.raises(GraphError, match=message):
            run_edges(base, other, [[edge]], METRIC)
    post = build(replace(model.config, block=PostNorm()))
    with pytest.raises(GraphError, match=r"post-norm.*nearest exact question.*base.edit\(patch"):
        run_edges(traced(post, random_ids(1, 5)), traced(post, random_ids(1, 5, 2)), [[]], METRIC)


def test_a_decoder_needs_the_same_source_text_in_both_runs():
    model = build(with_encoder(tiny_gpt2().config))
    sources = [trace(model.encoder, random_ids(1, 4, seed)) for seed in (5, 6)]
    runs = [trace(model, random_ids(1, 5, seed), source=source) for seed, source in zip((1, 2), sources, strict=True)]
    with pytest.raises(GraphError, match="same source text"):
        list(pairs(*runs, most=1))

"""Who wrote what a site reads: the sums against the sites' own values, single entries against formulas written here."""

import cmath

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from any_edits import some_edits
from known_circuit import repeated
from pellucid.inside.accounting import WAYS
from pellucid.inside.errors import LedgerError, SiteError
from pellucid.inside.reading import all_sites
from pellucid.inside.trace import trace
from pellucid.model.config import Bidirectional, Config, Init, LayerNorm, SwiGLU
from pellucid.model.rotary import Rotary
from tiny import VOCAB, build, configs, random_ids, tiny_gpt2, traced, with_encoder

READ = (".stream", ".stream.mid", ".stream.cross", ".input", ".query", ".key", ".value", ".gate", ".up", "final.normed")


def direction(width: int) -> torch.Tensor:
    return torch.randn(width, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def chosen(draw, site, value) -> tuple[dict, torch.Tensor]:
    """A part of a site's value at one token, and what is said to have it."""
    along = direction(value.shape[-1])
    if "F" in site.axes and draw(st.booleans()):
        neuron = draw(st.integers(0, value.shape[-1] - 1))
        return {"neuron": neuron}, value[neuron]
    if value.ndim == 2:
        head = draw(st.integers(0, len(value) - 1))
        return {"head" if "H" in site.axes else "kv_head": head, "along": along}, value[head] @ along
    return {"along": along}, value @ along


@pytest.mark.slow
@settings(max_examples=30)
@given(configs(), st.sampled_from(WAYS), st.booleans(), st.data())
def test_what_any_site_reads_is_the_sum_of_what_was_written(config, by, edited, data):
    """Of every family, encoders and what a decoder makes of them included; edited or not; in 64 and 32 bits."""
    site = data.draw(st.sampled_from([site for site in all_sites(build(config)) if site.name.endswith(READ)]))
    for dtype, bound in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        model = build(config, dtype=dtype)
        found = traced(model, random_ids(2, 5))
        if edited and dtype == torch.float64:
            found = found.edit(*some_edits(data.draw, model, traced(model, random_ids(2, 5, seed=9))))
        where, expected = chosen(data.draw, site, found[site.name][1, 3].double())
        ledger = found.wrote(site.name, by=by, row=1, position=3, **where)
        size = max(1.0, sum(abs(amount) for _, amount in ledger.entries))
        assert ledger.value == pytest.approx(float(expected), abs=bound * size)
        assert abs(ledger.remainder) <= bound * size
        assert len(dict(ledger.entries)) == len(ledger.entries)
        assert site.name in ledger.title


@settings(max_examples=15)
@given(configs(), st.booleans(), st.data())
def test_a_score_is_the_sum_of_the_senders_on_either_side(config, crossing, data):
    model = build(config)
    found = traced(model, random_ids(2, 5))
    crossing = crossing and model.encoder is not None
    name = f"{model.prefix}{config.n_layers - 1}.{'cross' if crossing else 'attention'}"
    head = data.draw(st.integers(0, config.n_heads - 1))
    scores = found[f"{name}.scores"][1, head]
    query, key = data.draw(st.sampled_from((scores != -torch.inf).nonzero().tolist()))
    score = float(scores[query, key])
    ours = found.wrote(f"{name}.query", by="head", row=1, position=query, head=head, key=key)
    theirs = found.wrote(f"{name}.key", by="head", row=1, position=key, head=head, query=query)
    for ledger in (ours, theirs):
        assert ledger.value == pytest.approx(score, abs=1e-9 * max(1.0, abs(score)))
        assert abs(ledger.remainder) <= 1e-9 * max(1.0, sum(abs(amount) for _, amount in ledger.entries))
    if crossing:
        assert all(entry.startswith(("encoder.", f"{name}.key")) for entry, _ in theirs.entries)


def rotary_model():
    config = Config(
        VOCAB, 16, 2, 24, 4, 2, positions=Rotary(100.0), norm=LayerNorm(), activation=SwiGLU(), init=Init(0.4)
    )
    return build(config)


def turned(x: torch.Tensor, position: int, base: float = 100.0) -> torch.Tensor:
    """Feature i and feature i + half are a complex number, turned by position * base^(-i / half)."""
    half = len(x) // 2
    pairs = [complex(x[i], x[i + half]) * cmath.exp(1j * position * base ** (-i / half)) for i in range(half)]
    return torch.tensor([z.real for z in pairs] + [z.imag for z in pairs], dtype=torch.float64)


def test_a_sender_of_a_query_goes_through_norm_matrix_and_rotation():
    """One head's write in the query of another, along the key that this meets, by hand."""
    model, ids = rotary_model(), random_ids(1, 6)
    found = trace(model, ids)
    x, block = found["1.stream"][0, 5], model.blocks[1].attention
    sigma = (x.var(unbiased=False) + 1e-5).sqrt()
    key = found["1.attention.key"][0, 2, 1] / 6**0.5
    W_Q, b_Q = block.qkv.weight[18:24], block.qkv.bias[18:24]
    written = dict(found.wrote("1.attention.query", by="head", head=3, key=2).entries)
    write = found["0.attention.writes"][0, 5, 1]
    expected = turned(W_Q @ ((write - write.mean()) / sigma * block.norm.weight), 5) @ key
    assert written["0.attention head 1"] == pytest.approx(float(expected), abs=1e-10)
    assert written["1.attention.query bias"] == pytest.approx(float(turned(b_Q, 5) @ key), abs=1e-10)
    shift = turned(W_Q @ block.norm.bias, 5) @ key
    assert written["1.attention norm bias"] == pytest.approx(float(shift), abs=1e-10)
    gates = dict(found.wrote("1.ffn.gate", neuron=7).entries)
    mid, ffn = found["1.stream.mid"][0, 5], model.blocks[1].ffn
    update = found["1.attention.update"][0, 5]
    read = (update - update.mean()) / (mid.var(unbiased=False) + 1e-5).sqrt() * ffn.norm.weight
    assert gates["1.attention"] == pytest.approx(float(ffn.gate.weight[7] @ read), abs=1e-10)
    assert gates["1.ffn.gate bias"] == pytest.approx(float(ffn.gate.bias[7]), abs=1e-12)
    assert "1.ffn" not in gates


def test_a_key_by_its_own_head_and_by_a_query_head_that_shares_it():
    found, along = trace(rotary_model(), random_ids(1, 6)), direction(6)
    for position in (0, 3):
        ours = found.wrote("1.attention.key", along, position=position, head=3)
        assert ours.entries == found.wrote("1.attention.key", along, position=position, kv_head=1).entries


@pytest.mark.parametrize("shared", [True, False])
def test_the_senders_of_what_a_decoder_attends_to_are_the_encoders(shared):
    config = Config(VOCAB, 16, 1, 12, 2, init=Init(0.4))
    found = traced(build(with_encoder(config, 2, shared)), random_ids(2, 5))
    ledger = found.wrote("decoder.0.cross.value", direction(6), by="head", row=1, position=2, head=1)
    names = [name for name, _ in ledger.entries]
    assert names[0] == "encoder.embed.token"
    assert names[-2:] == ["encoder.final.bias", "decoder.0.cross.value bias"]
    assert "encoder.1.attention head 1" in names
    assert ledger.value == pytest.approx(float(found["decoder.0.cross.value"][1, 2, 1] @ direction(6)), abs=1e-10)


def test_the_circuits_query_is_the_token_and_its_key_the_previous_token_head():
    """Head 1.0 meets the place after its token's earlier one: by its own token, and by what head 0.1 wrote there."""
    found, _, position, source = repeated()
    score = float(found["1.attention.scores"][0, 0, position, source])
    asked = found.wrote("1.attention.query", by="head", head=0, key=source, position=position)
    met = found.wrote("1.attention.key", by="head", head=0, query=position, position=source)
    for ledger, writer in ((asked, "embed.token"), (met, "0.attention head 1")):
        written = dict(ledger.entries)
        assert written.pop(writer) == pytest.approx(score, rel=1e-9)
        assert set(written.values()) == {0.0}
    assert score > 100.0


REFUSED = [
    ("1.attention.scores", {"head": 0}, LedgerError, r"wrote\('1\.attention\.query', head=, key=\)"),
    ("1.attention.pattern", {"head": 0}, LedgerError, r"softmax .*wrote\('1\.attention\.query'"),
    ("1.attention.heads", {"head": 0}, LedgerError, r"by='head and source'\)"),
    ("1.ffn.neurons", {"neuron": 0}, LedgerError, r"wrote\('1\.ffn\.up', neuron=\)"),
    ("1.ffn.update", {}, LedgerError, "entry of ledger"),
    ("1.ffn.input.scale", {}, LedgerError, "scale is held"),
    ("embed.token", {}, LedgerError, "linear reading of the stream"),
    ("logits", {}, LedgerError, r"ledger\(token\)"),
    ("1.attention.qury", {"head": 0}, SiteError, r"1\.attention\.query"),
    ("1.attention.query", {"key": 0}, LedgerError, "give head=, from 0 to 3"),
    ("1.attention.query", {"head": 4, "key": 0}, LedgerError, r"head 0\.\.3, got 4"),
    ("1.attention.query", {"head": 0, "neuron": 4}, LedgerError, "narrowed by head, key, got neuron"),
    ("1.attention.query", {"head": 0, "key": 9}, ValueError, "got position=9"),
    ("1.attention.query", {"head": 0, "key": 3, "position": 1}, LedgerError, "may not attend"),
    ("1.attention.query", {"head": 0}, LedgerError, r"which key it meets, with key= \(a position\), or give along="),
    ("1.attention.key", {"head": 0}, LedgerError, r"which query it meets, with query= \(a position\), or give along="),
    ("1.attention.value", {"head": 0}, LedgerError, "say along which direction it is asked, with along="),
    ("1.attention.key", {"kv_head": 0, "query": 4}, LedgerError, "neither kv_head= nor along="),
    ("1.ffn.up", {"neuron": 128}, LedgerError, r"neuron 0\.\.127, got 128"),
    ("1.ffn.up", {"neuron": 1, "along": torch.ones(128)}, LedgerError, "not both"),
    ("1.stream", {"head": 1}, LedgerError, "is not narrowed, got head"),
    ("1.stream", {}, LedgerError, "stream is a tensor of 32 finite numbers"),
    ("1.stream", {"along": torch.ones(32), "by": "layer"}, LedgerError, "a ledger goes by"),
]


@pytest.mark.parametrize(("site", "where", "kind", "said"), REFUSED)
def test_what_is_no_sum_is_refused_and_the_nearest_question_named(site, where, kind, said):
    found = trace(tiny_gpt2(), random_ids(1, 5))
    with pytest.raises(kind, match=said):
        found.wrote(site, **where)


def test_a_gated_neuron_names_both_its_readings():
    with pytest.raises(LedgerError, match=r"'1\.ffn\.gate' or '1\.ffn\.up'"):
        trace(rotary_model(), random_ids(1, 4)).wrote("1.ffn.neurons", neuron=2)


def test_a_reading_of_a_text_read_both_ways_may_meet_any_key():
    model = build(Config(VOCAB, 16, 1, 24, 2, masks=(Bidirectional(),), init=Init(0.4)))
    found = trace(model, random_ids(1, 5))
    ledger = found.wrote("0.attention.query", head=1, key=4, position=0)
    assert ledger.value == pytest.approx(float(found["0.attention.scores"][0, 1, 0, 4]), abs=1e-10)

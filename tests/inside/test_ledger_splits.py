"""A ledger split by neuron and by the position that attention brought a write from, held against the sites' values."""

import re
from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from any_edits import some_edits
from known_circuit import repeated
from pellucid.inside import edits as edit
from pellucid.inside.accounting import WAYS
from pellucid.inside.trace import trace
from pellucid.model.config import Config, Init, RMSNorm, SwiGLU, Window
from tiny import VOCAB, build, configs, random_ids, tiny_gpt2, traced, with_encoder


def probe(d: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def by_name(ledger) -> dict[str, float]:
    assert len(dict(ledger.entries)) == len(ledger.entries)  # no two entries of one name
    return dict(ledger.entries)


@settings(max_examples=12)
@given(configs(), st.integers(-5, 4))
def test_what_is_split_finer_adds_up_to_what_is_split_less(config, position):
    model = build(config)
    found = traced(model, random_ids(2, 5))
    written = {
        by: by_name(found.ledger(direction=probe(config.d_model), by=by, row=1, position=position)) for by in WAYS
    }
    heads, sources, positions = defaultdict(float), defaultdict(float), defaultdict(float)
    for name, amount in written["head and source"].items():
        if at := re.fullmatch(r"((.+) head \d+) from (.*position \d+) \(.*\)", name):
            heads[at[1]] += amount
            sources[at[3]] += amount
    for name, amount in written["source"].items():
        if at := re.fullmatch(r"(.*position \d+) \(.*\)", name):
            positions[at[1]] += amount
    ffns = defaultdict(float)
    for name, amount in written["neuron"].items():
        if ".ffn" in name and "norm" not in name:
            ffns[name.split(" ")[0]] += amount
    for name, amount in heads.items():
        assert amount == pytest.approx(written["head"][name], abs=1e-9)
    assert sources == pytest.approx(positions, abs=1e-9)
    for name, amount in ffns.items():
        assert amount == pytest.approx(written["sublayer"][name], abs=1e-9)
    assert len(heads) == sum(" head " in name for name in written["head"]) > 0
    assert len(ffns) == config.n_layers


@pytest.mark.parametrize("crossing", [False, True])
def test_a_source_is_its_share_of_the_pattern_times_its_value(crossing):
    """Grouped heads, a window, and an encoder: A[q, k] v_k W_O along the logit's direction."""
    config = Config(
        VOCAB, 16, 2, 24, 4, 2, norm=RMSNorm(), activation=SwiGLU(), masks=(Window(3),), tied=False, init=Init(0.4)
    )
    model = build(with_encoder(config) if crossing else config)
    found = traced(model, random_ids(2, 6))
    direction = found.direction(7, row=1, position=4)
    written = by_name(found.ledger(7, by="head and source", row=1, position=4))
    neurons = by_name(found.ledger(7, by="neuron", row=1, position=4))
    part, tokens, first = ("cross", found.source.ids, 0) if crossing else ("attention", found.ids, 2)
    name, block = f"{model.prefix}1.{part}", model.blocks[1]
    attention = block.cross if crossing else block.attention
    at = [entry for entry in written if entry.startswith(f"{name} head 3 from")]
    assert len(at) == (6 if crossing else 3)
    for key in range(first, first + len(at)):
        value = found[f"{name}.value"][1, key, 1]
        write = found[f"{name}.pattern"][1, 3, 4, key] * value @ attention.out.weight[:, 18:24].T
        label = f"{'source ' if crossing else ''}position {key} ({tokens[1, key]})"
        assert written[f"{name} head 3 from {label}"] == pytest.approx(float(write @ direction), abs=1e-10)
    m = found[f"{model.prefix}0.ffn.neurons"][1, 4]
    for neuron in (0, 17, 95):
        write = m[neuron] * model.blocks[0].ffn.down.weight[:, neuron]
        assert neurons[f"{model.prefix}0.ffn neuron {neuron}"] == pytest.approx(float(write @ direction), abs=1e-10)
    bias = float(model.blocks[0].ffn.down.bias @ direction)
    assert neurons[f"{model.prefix}0.ffn bias"] == pytest.approx(bias, abs=1e-10)


def test_padding_has_no_place_among_the_sources():
    model, ids = tiny_gpt2(), random_ids(1, 4)
    padded = torch.cat((torch.zeros(1, 2, dtype=torch.long), ids), 1)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1]])
    for by in ("source", "head and source"):
        ours, alone = trace(model, padded, mask).ledger(3, by=by), trace(model, ids).ledger(3, by=by)
        assert by_name(ours) == pytest.approx(by_name(alone), abs=1e-10)
        assert abs(ours.remainder) < 1e-9


@pytest.mark.slow
@settings(max_examples=22)
@given(configs(), st.sampled_from(WAYS), st.data())
def test_every_split_of_an_edited_trace_adds_up(config, by, data):
    """Edits of any site, norms and their scales and sums among them."""
    model, ids = build(config), random_ids(2, 5)
    edits = some_edits(data.draw, model, traced(model, random_ids(2, 5, seed=9)))
    found = traced(model, ids).edit(*edits)
    whole = found.ledger(direction=probe(config.d_model), by=by, row=1)
    by_name(whole)
    assert abs(whole.remainder) <= 1e-9 * max(1.0, abs(whole.value))
    if model.head is None:
        logits = f"{model.prefix}logits"
        logit = found.edit(edit.add(logits, 0.5)).ledger(4, by=by, row=1)
        assert logit.value == pytest.approx(float(found[logits][1, -1, 4]) + 0.5)
        assert abs(logit.remainder) <= 1e-9 * max(1.0, abs(logit.value))


def test_a_key_that_an_edit_lets_in_is_an_entry():
    """The pattern put wholly on a later position, which the mask would hide."""
    model, ids = tiny_gpt2(), random_ids(1, 5)
    later = edit.map_with("1.attention.pattern", lambda here: torch.eye(5, dtype=here.dtype)[4].expand_as(here))
    ledger = trace(model, ids).edit(later).ledger(3, by="head and source", position=1)
    assert f"1.attention head 0 from position 4 ({ids[0, 4]})" in by_name(ledger)
    assert abs(ledger.remainder) < 1e-9


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_in_16_bits_and_under_autocast_the_remainder_is_rounding(by, dtype):
    model = tiny_gpt2(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.float32):
        found = trace(model, random_ids(1, 6))
    ledger = found.ledger(3, by=by)
    products = found["final.normed"][0, -1].double() * model.W_U[3].double()  # the logit's own, each of them rounded
    size = sum(abs(amount) for _, amount in ledger.entries) + float(products.abs().sum())
    assert abs(ledger.remainder) <= 2**-8 * size


def test_the_circuit_copies_from_the_place_after_its_earlier_token():
    """The induction head's write comes from one position, and nothing else is written for the copied token."""
    found, ids, position, source = repeated()
    token = int(ids[0, position + 1])
    written = by_name(found.ledger(token, by="head and source", position=position))
    assert written.pop(f"1.attention head 0 from position {source} ({token})") == pytest.approx(20.0, abs=1e-2)
    assert max(map(abs, written.values())) < 1e-9
    written = by_name(found.ledger(token, by="source", position=position))
    assert written.pop(f"position {source} ({token})") == pytest.approx(20.0, abs=1e-2)
    assert max(map(abs, written.values())) < 1e-9


def test_a_ledger_of_thousands_of_entries_prints_the_largest():
    ledger = trace(tiny_gpt2(d_ff=1024), random_ids(1, 4)).ledger(3, by="neuron")
    assert len(ledger.entries) > 2048
    assert len(str(ledger).splitlines()) == 3 + 31 + 1
    assert len(ledger.table()) == len(ledger.entries)

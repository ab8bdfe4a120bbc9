"""A ledger's check against edits made here by hand, and where it must hold exactly."""

import re
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from known_circuit import repeated
from pellucid.inside import edits as edit
from pellucid.inside.accounting import WAYS
from pellucid.inside.checking import said
from pellucid.inside.circuit_by_hand import INDUCTION
from pellucid.inside.errors import LedgerError
from pellucid.inside.ledger import Ledger
from pellucid.inside.trace import trace
from pellucid.model.config import Init, Parallel, PostNorm
from tiny import build, configs, random_ids, tiny_gpt2, traced


def rows(table) -> dict[str, tuple]:
    assert table.columns == ("without", "predicted", "norms free", "happened", "in words")
    return {row[0]: row[1:] for row in table}


def row_of(ledger, name: str, over=None) -> tuple:
    """The row of one writer; not many more than those before it are taken away."""
    size = abs(dict(ledger.entries)[name])
    return rows(ledger.check(sum(abs(amount) >= size for _, amount in ledger.entries), over=over))[name]


def without(model, ids, position: int, *edits) -> float:
    """How the logit of token 3 changes."""
    found = trace(model, ids)
    return float((found.edit(*edits)["logits"] - found["logits"])[0, position, 3])


def test_the_largest_writers_are_taken_away_one_by_one_and_together():
    model, ids = tiny_gpt2(), random_ids(1, 6)
    found = trace(model, ids)
    ledger = found.ledger(3, by="head", position=4)
    table = ledger.check(3)
    can = sorted((entry for entry in ledger.entries if "bias" not in entry[0]), key=lambda entry: -abs(entry[1]))
    assert list(table.column("without")) == [*(name for name, _ in can[:3]), "all 3 together"]
    assert list(table.column("predicted"))[:3] == pytest.approx([-amount for _, amount in can[:3]], abs=1e-12)
    together = rows(table)["all 3 together"]
    assert together[0] == pytest.approx(-sum(amount for _, amount in can[:3]), abs=1e-12)
    written = found["2.stream"][0, 4].clone()
    made = []
    for name, _ in can[:3]:
        if name.startswith("embed"):
            made.append(edit.zero(name, position=4))
            written -= found[name][0, 4]
        elif name.endswith("ffn"):
            made.append(edit.zero(f"{name}.update", position=4))
            written -= found[f"{name}.update"][0, 4]
        else:
            layer, head = int(name[0]), int(name[-1])
            made.append(edit.zero(f"{layer}.attention.heads", head=head, position=4))
            written -= found[f"{layer}.attention.writes"][0, 4, head]
        assert rows(table)[name][2] == pytest.approx(without(model, ids, 4, made[-1]), abs=1e-10)
    assert together[2] == pytest.approx(without(model, ids, 4, *made), abs=1e-10)
    free = model.final_norm(written[None, None])[0, 0] @ model.W_U[3] - found["logits"][0, 4, 3]
    assert together[1] == pytest.approx(float(free), abs=1e-10)
    assert f"the value is {ledger.value:+.4f}" in table.note


def without_key(key: int):
    return partial(torch.mul, other=torch.arange(6) != key)


def by_hand(name: str) -> list[edit.Edit]:
    """The edits that take a writer away, read off its name."""
    numbers = [int(number) for number in re.findall(r"\d+", name)]
    if name.startswith("position"):
        return [edit.map_with(f"{layer}.attention.pattern", without_key(numbers[0]), position=4) for layer in (0, 1)]
    if " from " in name:
        return [edit.map_with("0.attention.pattern", without_key(numbers[2]), head=numbers[1], position=4)]
    if " neuron " in name:
        return [edit.zero("0.ffn.neurons", neuron=numbers[1], position=4)]
    return [edit.zero(name if name.startswith("embed") else f"{name}.update", position=4)]


KINDS = [
    ("sublayer", "0.attention"),
    ("sublayer", "embed.position"),
    ("neuron", "0.ffn neuron"),
    ("head and source", "0.attention head"),
    ("source", "position"),
]


@pytest.mark.parametrize(("by", "kind"), KINDS)
def test_every_kind_of_writer_is_taken_away(by, kind):
    model, ids = tiny_gpt2(), random_ids(1, 6)
    ledger = trace(model, ids).ledger(3, by=by, position=4)
    name = max((entry for entry in ledger.entries if entry[0].startswith(kind)), key=lambda entry: abs(entry[1]))[0]
    happened = row_of(ledger, name)[2]
    assert happened == pytest.approx(without(model, ids, 4, *by_hand(name)), abs=1e-10)
    assert abs(happened) > 1e-6


@pytest.mark.slow
@settings(max_examples=14)
@given(configs(), st.sampled_from(["head", "neuron", "source", "head and source", "sublayer"]), st.integers(0, 4))
def test_where_nothing_comes_after_the_prediction_is_what_happens(config, by, position):
    """The state behind the first sublayers: they are all there is, so taking one away is taking its entry away."""
    if isinstance(config.block, PostNorm):
        return
    model = build(config)
    state = f"{model.prefix}{'1.stream' if isinstance(config.block, Parallel) else '0.stream.mid'}"
    along = torch.randn(config.d_model, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    ledger = traced(model, random_ids(2, 5)).wrote(state, along, by=by, row=1, position=position)
    scale = max(1.0, sum(abs(amount) for _, amount in ledger.entries))
    tried = 0
    for name, predicted, free, happened, words in ledger.check(12):
        assert free is None or free == pytest.approx(predicted, abs=1e-9 * scale)
        if "embed" not in name and "together" not in name:
            assert happened == pytest.approx(predicted, abs=1e-9 * scale)
            assert "later" not in words or abs(predicted) < 1e-7 * scale
            tried += 1
    assert tried > 0


@pytest.mark.slow
@settings(max_examples=10)
@given(configs(), st.sampled_from(WAYS))
def test_any_ledger_of_any_family_can_be_checked(config, by):
    model = build(config)
    found = traced(model, random_ids(2, 5))
    ledger = found.ledger(direction=torch.ones(config.d_model), by=by, row=1, position=3)
    table = ledger.check(2)
    assert len(table) == 3
    assert table.column("predicted")[2] == pytest.approx(sum(table.column("predicted")[:2]), abs=1e-9)
    assert (table.column("norms free")[2] is None) == isinstance(config.block, PostNorm) or "embed" in str(table)
    if model.encoder is not None:
        kind = found.wrote("decoder.0.cross.value", torch.ones(config.d_head), by=by, row=1, position=3, head=0)
        site = found["decoder.0.cross.value"][1, 3, 0].sum()
        name, _, _, happened, _ = kind.check(1).rows[0]
        if name == "encoder.embed.token":
            edited = found.edit(edit.zero(name, position=3))["decoder.0.cross.value"][1, 3, 0].sum()
            assert happened == pytest.approx(float(edited - site), abs=1e-9)


def test_writers_can_be_named():
    ledger = trace(tiny_gpt2(), random_ids(1, 6)).ledger(3, by="head")
    names = ("1.attention head 2", "0.attention head 0")
    table = ledger.check(writers=names)
    assert table.column("without") == (*names, "all 2 together")
    assert table.rows[0] == (names[0], *row_of(ledger, names[0]))
    for name, hint in (("1.attention hed 2", "one is '1.attention head 2'"), ("0.attention bias", "no writer")):
        with pytest.raises(LedgerError, match=hint):
            ledger.check(writers=[name])


def test_a_padded_row_is_checked_as_if_it_were_alone():
    """Beside a longer one, padded on the left: columns are not positions."""
    model, ids = tiny_gpt2(), random_ids(2, 6)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
    both, alone = trace(model, ids, mask), trace(model, ids[1:, 2:])
    for by in ("head", "head and source"):
        ours, theirs = both.ledger(3, by=by, row=1, position=2).check(), alone.ledger(3, by=by, position=2).check()
        for row, other in zip(ours, theirs, strict=True):
            assert row[0] == other[0]
            assert row[1:4] == pytest.approx(other[1:4], abs=1e-10)


def test_a_writer_can_be_set_to_its_mean_over_another_trace():
    model, ids, other = tiny_gpt2(), random_ids(1, 6), trace(tiny_gpt2(), random_ids(3, 4, seed=5))
    found = trace(model, ids)
    for by, site, where in (
        ("head", "1.attention.heads", {"head": 2}),
        ("sublayer", "0.ffn.update", {}),
    ):
        ledger = found.ledger(3, by=by)
        name = " ".join((site.rpartition(".")[0], *(f"{key} {value}" for key, value in where.items())))
        found_row = row_of(ledger, name, over=other)
        mean = other[site].flatten(0, 1).mean(0)
        made = edit.set_to(site, mean[2] if where else mean, position=5, **where)
        assert found_row[2] == pytest.approx(without(model, ids, -1, made), abs=1e-10)
        after = found.edit(made)
        direction = found.direction(3)
        if by == "head":  # in the last attention layer: what it writes then, along the same direction
            change = (after["1.attention.writes"] - found["1.attention.writes"])[0, -1, 2]
            assert found_row[0] == pytest.approx(float(change @ direction), abs=1e-10)
    with pytest.raises(LedgerError, match="can be taken away, not set to a mean"):
        found.ledger(3, by="source").check(20, over=other)
    with pytest.raises(LedgerError, match="same model"):
        found.ledger(3).check(1, over=trace(tiny_gpt2(n_layers=1), ids))


def test_a_writer_that_is_edited_already_can_be_taken_away():
    """A head that was set to zero, then taken away: the two do not collide, and nothing happens."""
    found = trace(tiny_gpt2(), random_ids(1, 6)).edit(edit.zero("1.attention.heads", head=2))
    ledger = found.ledger(3, by="head")
    _, free, happened, words = row_of(ledger, "1.attention head 2")
    assert (free, happened, words) == (0.0, 0.0, "as predicted")


SAID = [
    (-2.0, -2.0, -2.0, "as predicted"),
    (-2.0, -2.0, -2.09, "as predicted"),
    (-2.0, -2.0, -0.8, "later sublayers restore 60%"),
    (-2.0, -2.0, 0.01, "later sublayers restore 100%"),
    (-2.0, -2.0, 0.5, "later sublayers turn it round"),
    (-2.0, -2.0, -3.0, "later sublayers add 50%"),
    (-2.0, -2.0, -9.0, "later sublayers make it 4.5 times that"),
    (-2.0, -1.0, -1.0, "as predicted, but for the norm"),
    (-2.0, None, -0.8, "later sublayers and norms restore 60%"),
    (0.0, 0.0, 0.0, "as predicted"),
    (-0.1, -0.1, -1.5, "nearly all of it through later sublayers"),
    (-2.0, 0.0, 0.001, "as predicted, but for the norm"),
    (0.0, 0.0, 1.5, "nearly all of it through later sublayers"),
]


@pytest.mark.parametrize(("predicted", "free", "happened", "words"), SAID)
def test_the_table_says_in_words_what_later_sublayers_did(predicted, free, happened, words):
    assert said(predicted, free, happened) == words


def test_without_the_induction_head_the_circuit_copies_nothing():
    found, ids, position, source = repeated()
    token = int(ids[0, position + 1])
    name = "{}.attention head {}".format(*INDUCTION)
    for by, writer in (("head", name), ("head and source", f"{name} from position {source} ({token})")):
        ledger = found.ledger(token, by=by, position=position)
        first, predicted, _, happened, words = ledger.check(1).rows[0]
        assert (first, words) == (writer, "as predicted")
        assert predicted == pytest.approx(-20.0, abs=1e-2)
        assert happened == pytest.approx(predicted, rel=1e-12)
        assert ledger.value + happened == pytest.approx(0.0, abs=1e-9)
    # what it reads: its own token makes it look there, and without what head 0.1 wrote there is nothing to find
    met = found.wrote("1.attention.key", by="head", head=0, query=position, position=source)
    first, predicted, _, happened, _ = met.check(1).rows[0]
    assert first == "0.attention head 1"
    assert [predicted, happened] == pytest.approx([-met.value, -met.value], rel=1e-9)


def test_what_cannot_be_checked_is_said():
    found = trace(tiny_gpt2(init=Init(0.1)), random_ids(1, 4))
    with pytest.raises(LedgerError, match="at least 1, got 0"):
        found.ledger(3).check(0)
    with pytest.raises(LedgerError, match="ask the trace for it again"):
        Ledger("a logit", "sublayer", (("embed.token", 1.0),), 1.0).check()
    assert "Asked" not in repr(found.ledger(3))
    assert found.ledger(3) == found.ledger(3)

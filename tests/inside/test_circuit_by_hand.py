"""The circuit whose inside is known: what the analyses must find in it."""

import pytest
import torch

from pellucid.inside.circuit_by_hand import INDUCTION, LOGIT, PREVIOUS, START, induction_circuit, spaces
from pellucid.inside.composition import composition, weight_prefix_matching
from pellucid.inside.copying import copying, copying_eigenvalues
from pellucid.inside.grading import report_card
from pellucid.inside.head_scores import measure
from pellucid.inside.head_targets import duplicate_token, induction, prefix_matching, previous_token
from pellucid.inside.trace import trace

N = 25


def twice(rows: int = 3, times: int = 2) -> torch.Tensor:
    draw = torch.Generator().manual_seed(3)
    halves = torch.stack([torch.randperm(31, generator=draw)[:N] + 1 for _ in range(rows)])
    return torch.cat((torch.full((rows, 1), START), *[halves] * times), dim=1)


def zeroed(layer: int, head: int):
    def see(value, _place, _keys):
        value = value.clone()
        value[:, :, head] = 0.0
        return value

    return {f"{layer}.attention.heads": see}


def copied(model, ids, looks=None) -> float:
    """The share of the second copy, from its second token on, that is predicted."""
    ahead = model(ids, looks=looks)[:, N + 1 : -1].argmax(-1)
    return float((ahead == ids[:, N + 2 :]).double().mean())


def loss(model, ids, looks=None) -> float:
    logits = model(ids, looks=looks)[:, N + 1 : -1]
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, N + 2 :].flatten()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_its_heads_score_one(dtype):
    model, ids = induction_circuit().to(dtype), twice()
    found = trace(model, ids)
    previous, inductive, duplicate, prefix = measure(
        found, [previous_token(found), induction(found), duplicate_token(found), prefix_matching(found)]
    )
    assert float(previous.score[PREVIOUS]) == 1.0
    assert float(inductive.score[INDUCTION]) == float(prefix.score[INDUCTION]) == 1.0
    for nothing in (duplicate.score[INDUCTION], duplicate.score[PREVIOUS], inductive.score[PREVIOUS]):
        assert float(nothing) < 1e-100
    assert int(inductive.n[INDUCTION]) == 3 * N
    pattern = found["1.attention.pattern"][:, 0]
    ideal = torch.zeros(51, 51)
    ideal[torch.arange(26), 0] = 1.0  # rests until something repeats
    ideal[torch.arange(26, 51), torch.arange(2, 27)] = 1.0
    torch.testing.assert_close(pattern.double(), ideal.double().expand_as(pattern), atol=1e-100, rtol=0)


def test_it_copies_and_zeroing_either_head_destroys_the_copy():
    model, ids = induction_circuit(), twice()
    assert copied(model, ids) == 1.0
    assert loss(model, ids) < 1e-6
    for layer, head in (PREVIOUS, INDUCTION):
        looks = zeroed(layer, head)
        assert copied(model, ids, looks) == 0.0
        assert loss(model, ids, looks) == pytest.approx(torch.tensor(32.0).log().item(), abs=1e-6)
        assert copied(model, ids, zeroed(layer, 1 - head)) == 1.0


def test_its_ledger_names_the_heads():
    model, ids = induction_circuit().double(), twice(1)
    found, at = trace(model, ids), spaces(model.config)
    position = N + 7
    ledger = found.ledger(int(ids[0, position + 1]), by="head", position=position)
    written = dict(ledger.entries)
    name = "{}.attention head {}".format(*INDUCTION)
    assert written.pop(name) == pytest.approx(LOGIT, abs=1e-2)
    assert set(written.values()) == {0.0}
    assert abs(ledger.remainder) < 1e-9
    direction = torch.zeros(model.config.d_model)
    direction[at.previous + int(ids[0, position - 1])] = 1.0
    written = dict(found.ledger(direction=direction, by="head", position=position).entries)
    assert written.pop("{}.attention head {}".format(*PREVIOUS)) == pytest.approx(1.0, abs=1e-3)
    assert set(written.values()) == {0.0}


def test_the_induction_head_composes_with_the_previous_token_head_by_its_keys_alone():
    model = induction_circuit().double()
    for kind in ("Q", "K", "V"):
        score = composition(model, kind).score
        expected = torch.zeros(2, 2, 2, 2, dtype=torch.float64)
        if kind == "K":
            # W_OV moves 31 words by sqrt 2 each; W_QK holds S for 31 words, and S / 2 from each of 32 to the start
            expected[(*PREVIOUS, *INDUCTION)] = 31**0.5 / (31**0.5 * (31 + 32 / 4) ** 0.5)
        torch.testing.assert_close(score[0, :, 1], expected[0, :, 1])
        assert bool(score[1].isnan().all() and score[0, :, 0].isnan().all())
    best = composition(model, "K").top(1).rows[0]
    assert best[:4] == (*PREVIOUS, *INDUCTION)
    scores = torch.zeros(2, 2)
    scores[PREVIOUS] = 1.0
    found = weight_prefix_matching(model, scores)
    assert (found > 0).nonzero().tolist() == [list(INDUCTION)]


def test_only_the_induction_head_copies():
    model, ids = induction_circuit().double(), twice()
    for scores in (copying(trace(model, ids)), copying_eigenvalues(model)):
        assert float(scores.score[INDUCTION]) == pytest.approx(1.0, abs=1e-9)
        others = scores.score.clone()
        others[INDUCTION] = torch.nan
        assert bool(others.isnan().all())  # nothing is raised, no eigenvalue differs from 0


def test_its_report_card_names_both_heads():
    card = report_card(induction_circuit(), start=START)
    assert card.kinds == (("", "previous token"), ("induction", ""))
    assert [row[:3] for row in card.of("induction")] == [(*INDUCTION, 1.0)]
    assert float(card.scores("induction").control[INDUCTION]) == 0.0


def test_a_circuit_too_small_is_refused():
    with pytest.raises(ValueError, match="at least 2 tokens and 2 positions, got 1 and 9"):
        induction_circuit(1, 9)


def test_building_it_draws_no_random_numbers():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    induction_circuit()
    assert torch.equal(before, torch.get_rng_state())

"""The ledger in full, on a model that has learned."""

import pytest

import pellucid

pytestmark = pytest.mark.slow


def test_the_capital_comes_from_france_and_the_model_agrees(smollm2_path):
    trace = pellucid.load(smollm2_path).trace("The capital of France is")
    ledgers = {by: trace.ledger(" Paris", minus=" London", by=by) for by in ("neuron", "source", "head and source")}
    for ledger in ledgers.values():
        assert abs(ledger.remainder) < 1e-4
    assert len(ledgers["neuron"].entries) == 1 + 30 * (9 + 1536)
    best = ledgers["head and source"].top(1).rows[0]
    assert best[0] == "23.attention head 4 from position 3 (␣France)"
    table = ledgers["source"].check(writers=["position 3 (␣France)"])
    _, predicted, _, happened, _ = table.rows[0]
    assert happened < predicted < 0  # without France, Paris loses all its lead and more
    assert ledgers["source"].value + happened < 0
    score = trace["20.attention.scores"][0, 3, 4, 3]
    for asked in (
        trace.wrote("20.attention.query", by="head", head=3, key=3),
        trace.wrote("20.attention.key", by="head", head=3, query=4, position=3),
    ):
        assert asked.value == pytest.approx(float(score), abs=1e-4)
        assert abs(asked.remainder) < 1e-4

"""The pairs on the real thing: SmolLM2 answers them, and the other way round when they are corrupted."""

import pytest

import pellucid
from pellucid.inside.pair_texts import facts, greater_than, ioi
from pellucid.inside.pairs import aligned

pytestmark = pytest.mark.slow


def test_smollm2_names_the_indirect_object_and_the_capital(smollm2_path):
    model = pellucid.load(smollm2_path)
    for make in (ioi, facts):
        pairs = aligned(make(model.tokenizer, 8), model.tokenizer)
        assert (pairs.differ.sum(1) == 1).all()
        clean, corrupted = pairs.traces(model.transformer)
        assert (pairs.measure(clean) > 2).all()
        assert (pairs.measure(corrupted) < -2).all()
    years = aligned(greater_than(model.tokenizer, 4), model.tokenizer)  # its tokenizer cuts years into digits
    assert all(len(answer) == 1 for pair in years.pairs for answer in pair.answers)
    assert (years.differ.sum(1) == 1).all()

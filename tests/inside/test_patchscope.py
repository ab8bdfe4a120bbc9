"""Reading a state in another prompt."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.inside.edits import set_to
from pellucid.inside.errors import EditError, SiteError
from pellucid.inside.patchscope import carried, read_in
from pellucid.inside.trace import trace
from pellucid.model.config import Config, Init
from tiny import VOCAB, build, random_ids, tiny_gpt2, traced


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(0, 2), st.integers(-5, 4), st.integers(0, 1), st.integers(-4, 3))
def test_the_state_stands_in_the_other_prompt_and_what_follows_runs_on(depth, position, target_depth, target_position):
    source, target = traced(tiny_gpt2(), random_ids(1, 5)), traced(tiny_gpt2(), random_ids(1, 4, seed=9))
    found = read_in(source, f"{depth}.stream", position, target, f"{target_depth}.stream", target_position)
    state = target[f"{target_depth}.stream"].clone()
    state[0, target_position] = source[f"{depth}.stream"][0, position]
    model = target.transformer
    here = model.begin(target.ids)
    expected = model.logits(model.run(state, here, first=2 * target_depth), here)
    assert torch.allclose(found["logits"], expected, atol=1e-12)
    assert torch.equal(found[f"{target_depth}.stream"], state)


def test_the_last_state_read_at_the_end_says_what_the_source_says():
    source, target = traced(tiny_gpt2(), random_ids(1, 5)), traced(tiny_gpt2(), random_ids(1, 4, seed=9))
    assert read_in(source, "2.stream", -1, target, "2.stream", -1).top(5).rows == source.top(5).rows
    assert read_in(source, "2.stream", 1, target, "2.stream", 0).top(5).rows == target.top(5).rows


def test_a_state_of_another_model_of_the_same_width_and_padding():
    other = build(Config(VOCAB, 16, 3, 32, 2, init=Init(0.4)), seed=5)
    source = traced(other, random_ids(2, 5), torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]))
    target = trace(tiny_gpt2(), random_ids(1, 6), torch.tensor([[0, 1, 1, 1, 1, 1]]))
    found = read_in(source, "3.stream", 0, target, "1.stream", -2)
    assert torch.equal(found["1.stream"][0, 4], source["3.stream"][0, 2])
    assert torch.equal(found["1.stream"][0, 5], target["1.stream"][0, 5])
    edit = carried(source, "3.stream", -1, "1.stream", 2, row=1)
    assert torch.equal(edit.value, source["3.stream"][1, 4])
    assert edit.positions == (2,)
    same = target.edit(set_to("1.stream", source["3.stream"][1, 4], position=2))
    assert torch.equal(target.edit(edit).states[-1], same.states[-1])


def test_what_does_not_fit_is_refused():
    source, target = traced(tiny_gpt2(), random_ids(1, 5)), traced(tiny_gpt2(), random_ids(1, 4))
    wider = traced(build(Config(VOCAB, 16, 1, 24, 2)), random_ids(1, 4))
    with pytest.raises(EditError, match=r"must fit shape \[24\] .*got \[32\]"):
        read_in(source, "1.stream", 0, wider, "0.stream", 0)
    with pytest.raises(ValueError, match=r"0\.\.4, got position=5"):
        read_in(source, "1.stream", 5, target, "0.stream", 0)
    with pytest.raises(ValueError, match=r"0\.\.3, got position=4"):
        read_in(source, "1.stream", 0, target, "0.stream", 4)
    with pytest.raises(SiteError, match="did you mean"):
        read_in(source, "1.strem", 0, target, "0.stream", 0)

"""The map of the stream against the states themselves, and tiles of it against the model's own end."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from any_edits import some_edits
from letters import bytes_as_tokens
from pellucid.inside.geometry import step_lengths
from pellucid.inside.shown import stream as module
from pellucid.inside.shown.resources import answer
from pellucid.inside.shown.stream import depths, stream
from pellucid.inside.trace import trace
from pellucid.model.config import Bidirectional, Config, Parallel
from pellucid.views.packed import Packed
from pellucid.views.packing import unpacked
from tiny import VOCAB, build, configs, random_ids, tiny_gpt2, traced


def arrays(packed: Packed) -> dict[str, np.ndarray]:
    return {array.name: unpacked(array) for array in packed.arrays}


def error(packed: Packed, name: str) -> float:
    return next(array.error for array in packed.arrays if array.name == name)


@settings(max_examples=25)
@given(configs())
def test_the_map_has_every_state_and_every_step(config):
    run = traced(build(config), random_ids(2, 5))
    found = stream(run)
    shown = arrays(found)
    states = torch.stack([state[0] for state in run.states])
    near = error(found, "norm") + 1e-9
    np.testing.assert_allclose(shown["norm"], states.norm(dim=-1), atol=near, rtol=0)
    near = error(found, "change") + 1e-9
    np.testing.assert_allclose(shown["change"], step_lengths(run).values, atol=near, rtol=0)
    assert near < 2e-3 * float(step_lengths(run).values.max())
    assert len(found.meta["states"]) == len(found.meta["steps"]) + 1
    assert all(torch.equal(run[name], state) for name, state in zip(found.meta["states"], run.states, strict=True))
    two = isinstance(config.block, Parallel)
    assert all(len(parts) == (2 if two else 1) for parts in found.meta["steps"])
    assert [f"{part}.update" in run.names for parts in found.meta["steps"] for part in parts].count(False) == 0
    assert found.meta["lens"]


@settings(max_examples=25)
@given(configs(), st.data(), st.integers(1, 400))
def test_tiles_say_what_the_lens_says(config, data, at_once):
    """In pieces of any size, edits of the model's end among them, equal to the end of the model read at that state."""
    model, ids = build(config), random_ids(1, 5)
    run = traced(model, ids)
    run = run.edit(*some_edits(data.draw, model, run))
    first_state, last_state = sorted(data.draw(st.tuples(*[st.integers(0, len(run.states) - 1)] * 2)))
    first, last = sorted(data.draw(st.tuples(st.integers(0, 4), st.integers(0, 4))))
    step = data.draw(st.integers(1, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LOGITS_AT_ONCE", at_once)
        found = depths(run, first_state, last_state, step, first, last)
    shown, states = arrays(found), list(range(first_state, last_state + 1, step))
    assert found.meta["indexes"] == states
    assert found.meta["first"] == first
    for row, index in enumerate(states):
        read = run.with_states((*run.states[:-1], run.states[index])).logits_at(0, list(range(first, last + 1)))
        shares = read.softmax(-1)
        assert shown["top"][row].tolist() == read.argmax(-1).tolist()
        best, entropy = shares.max(-1).values, torch.special.entr(shares).sum(-1)
        np.testing.assert_allclose(shown["probability"][row], best, atol=1e-9 + error(found, "probability"), rtol=0)
        np.testing.assert_allclose(shown["entropy"][row], entropy, atol=1e-9 + error(found, "entropy"), rtol=0)
    assert found.meta["labels"] == {str(id): str(id) for id in np.unique(shown["top"])}
    assert error(found, "probability") <= 2.0**-12
    lens = run.lens(position=last)
    for site, top, probability in zip(
        lens.column("site"), lens.column("top token"), lens.column("probability"), strict=True
    ):
        if site in found.meta["states"]:
            row = found.meta["states"].index(site)
            assert str(shown["top"][row, -1]) == top
            assert shown["probability"][row, -1] == pytest.approx(probability, abs=1e-3)


def test_padding_is_left_out_of_both():
    ids, mask = random_ids(1, 6), torch.tensor([[0, 0, 1, 1, 1, 1]])
    padded, bare = traced(tiny_gpt2(), ids, mask), traced(tiny_gpt2(), ids[:, 2:])
    for made in (stream, depths):
        for name, values in arrays(made(bare)).items():
            np.testing.assert_allclose(arrays(made(padded))[name], values, atol=2e-3)
    assert depths(padded, first=1, last=2).meta["first"] == 1


def test_labels_are_the_tokenizers(tmp_path):
    tokenizer = bytes_as_tokens(tmp_path)
    run = trace(tiny_gpt2(vocab_size=256), torch.tensor([tokenizer.encode("ab c")]), tokenizer=tokenizer)
    found = depths(run)
    for id, label in found.meta["labels"].items():
        assert tokenizer.labels([int(id)]) == [label]


def test_what_is_no_tile_is_refused():
    run = traced(tiny_gpt2(), random_ids(1, 4))
    for wrong, words in (
        ({"first_state": 3, "last_state": 2}, "first_state must not come after last_state, got 3 and 2"),
        ({"last_state": 5}, r"first_state and last_state must lie in 0\.\.4, got 0 and 5"),
        ({"first": -5}, r"first and last must lie in 0\.\.3, got -5 and -1"),
        ({"step": 0}, "step must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=words):
            answer(run, "depths", wrong)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_CELLS", 19)
        with pytest.raises(ValueError, match="at most 19 cells are read at once, got 20: ask for fewer"):
            depths(run)
    bare = traced(tiny_gpt2(masks=(Bidirectional(),), head=None), random_ids(1, 4))
    assert not stream(bare).meta["lens"]
    with pytest.raises(ValueError, match="no head that makes logits"):
        depths(bare)


def test_a_logit_that_is_minus_infinity_has_no_share():
    """A bias of -inf forbids a token; the entropy of the others is theirs alone."""
    model = tiny_gpt2()
    run = traced(model, random_ids(1, 3))
    with torch.no_grad():
        logits = run["logits"].clone()
        logits[..., :40] = -torch.inf
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model), "logits", lambda *_: logits.expand(5, 3, VOCAB).clone())
        shown = arrays(depths(run))
    shares = logits[0].softmax(-1)
    np.testing.assert_allclose(shown["entropy"][0], torch.special.entr(shares).sum(-1), atol=2e-3)
    np.testing.assert_allclose(shown["probability"][0], shares.max(-1).values, atol=1e-3)


def test_numbers_too_large_for_16_bits_are_sent_in_32():
    model = build(Config(VOCAB, 16, 1, 24, 3, embedding_scale=1e6))
    found = stream(traced(model, random_ids(1, 3)))
    assert {array.name: array.kind for array in found.arrays} == {"norm": "float32", "change": "float16"}

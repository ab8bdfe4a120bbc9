"""A trace shows itself: what is chosen is checked, a view's file holds what it asks, and it is small."""

import re

import numpy as np
import pytest
import torch

from explorer.letters import letters
from pellucid.inside.edits import zero
from pellucid.inside.shown.drawn import DRAWN
from pellucid.inside.shown.showing import CHOICES, READINGS, ROOM, choose, gathered
from pellucid.inside.shown.wanted import WANTED, Chosen
from pellucid.inside.trace import Trace, trace
from pellucid.model.budget import budget
from pellucid.model.config import Bidirectional, Causal, Init, Parallel
from pellucid.views.packed import Packed
from pellucid.views.packing import unpacked
from tiny import arguments, build, random_ids, tiny_gpt2, traced, with_encoder

MODELS = {
    "gpt2": {},
    "parallel": {"block": Parallel()},
    "headless": {"masks": (Bidirectional(),), "head": None},
}


def a_trace(model: str = "gpt2", columns: int = 6) -> Trace:
    return trace(tiny_gpt2(**MODELS[model]), random_ids(1, columns), tokenizer=letters())


def cross() -> Trace:
    config = with_encoder(tiny_gpt2().config)
    model = build(config)
    ids = random_ids(1, 5)
    source = trace(model.encoder, arguments(config, 1, 8)["source"])
    return trace(model, ids, source=source)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("view", WANTED)
def test_every_view_is_drawn_and_its_answers_are_the_librarys(model, view):
    run = a_trace(model)
    found = gathered(run, view, choose(run, layer=1, head=3, position=2))
    assert all(re.match(r"(traces|models)/saved/[a-z]+(\?|$)", path) for path in found)
    assert run.show(view, layer=1)._repr_png_().startswith(b"\x89PNG")
    if model != "headless":
        table = found["traces/saved/next?k=10&position=2"]
        assert table["rows"][0][1] == run.top(1, position=2).rows[0][1]


def test_an_encoder_decoder_shows_either_attention():
    run = cross()
    for view in WANTED:
        assert run.show(view, part="cross", position=1, key=7)._repr_png_().startswith(b"\x89PNG")
        assert gathered(run, view, choose(run, part="cross", key=7))
    with pytest.raises(ValueError, match=r"key must lie in 0\.\.7, got 8"):
        run.show("heads", part="cross", key=8)


def test_the_patterns_of_all_heads_are_in_the_file():
    run = a_trace()
    found = gathered(run, "heads", choose(run))
    packed = next(shown for path, shown in found.items() if path.split("?")[0] == "traces/saved/patterns")
    assert isinstance(packed, Packed)
    for array in packed.arrays:
        exact = run[f"{array.name}.attention.pattern"][0].numpy()
        assert array.triangle
        assert np.abs(unpacked(array) - exact).max() <= array.error


def test_what_is_chosen_is_checked_and_told_to_the_page():
    run = a_trace()
    assert choose(run) == Chosen(position=5, state=4)
    chosen = choose(run, layer=1, head=2, position=-2, key=0, neuron=3, token="b")
    assert chosen == Chosen(1, 2, "attention", 4, 0, 3, run.id_of("b"), 2)
    for wrong, said in {
        "layer": "layer must lie in 0..1, got 99",
        "head": "head must lie in 0..3, got 99",
        "neuron": "neuron must lie in 0..127, got 99999",
        "position": "positions 0..5, got position=99",
        "key": "key must lie in 0..5, got 99",
        "token": "token ids lie in 0..49, got 99",
        "part": "part must be 'attention'",
        "state": f"in a view {', '.join(CHOICES)} can be chosen; got state",
    }.items():
        with pytest.raises(ValueError, match=re.escape(said)):
            run.show("heads", **{wrong: 99999 if wrong == "neuron" else 99 if wrong != "part" else "cross"})
    with pytest.raises(ValueError, match="shown as glance, stream, attention, heads, ffn, pass; got 'all'"):
        run.show("all")


@pytest.mark.parametrize("name", ["layer", "head", "key", "neuron"])
@pytest.mark.parametrize("value", ["a", None, 1.0, True, [1]])
def test_what_numbers_nothing_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be a whole number, got "):
        choose(a_trace(), **{name: value})


def test_a_saved_page_knows_the_model_the_text_and_the_edits():
    run = a_trace().edit(zero("1.attention.heads", head=0))
    html = run.show("glance").html
    assert '"python":"pl.zero(' in html
    assert f'"text":"{run.tokenizer.decode(run.ids[0].tolist())}"' in html
    assert f'"name":"{budget(run.transformer.config).total:,} parameters"' in html


def test_more_than_a_view_needs_is_added_only_while_there_is_room():
    run = trace(tiny_gpt2(d_model=512, context_length=64, n_heads=4), random_ids(1, 60))
    answers = gathered(run, "attention", choose(run))
    sizes = [len(shown.to_bytes()) for shown in answers.values() if isinstance(shown, Packed)]
    assert 3 < len(sizes) < 63
    assert ROOM * 3 / 4 - max(sizes) < sum(sizes[1:]) < ROOM * 3 / 4 + 2 * max(sizes)


@pytest.mark.parametrize(("mask", "most"), [(Causal(), 2_000_000), (Bidirectional(), 3_200_000)])
def test_144_heads_at_128_tokens_are_small(mask, most):
    """Patterns about as random as softmax makes them: flatter and sharper ones take less."""
    settings = {"n_layers": 12, "n_heads": 12, "d_model": 96, "context_length": 128}
    model = tiny_gpt2(torch.float32, masks=(mask,), init=Init(0.2), **settings)
    view = traced(model, random_ids(1, 128)).show("heads")
    assert len(view.html.encode()) <= most
    assert len((view._repr_html_() or "").encode()) <= most


def test_all_views_are_known_everywhere():
    assert list(DRAWN) == list(WANTED)
    assert set(READINGS) == {"head", "neuron"}

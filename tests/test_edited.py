"""Edited models: the same edits in a trace, in a batch with padding, and while decoding through the cache."""

import gc

import pytest
import torch

import pellucid as pl
from pellucid.front import Model
from pellucid.inside.plan import plan
from pellucid.model.config import Config, Init, Parallel, Window
from pellucid.model.rotary import Rotary
from tiny import build, tiny_gpt2, with_encoder

EDITS = (
    pl.zero("0.attention.heads", head=1),
    pl.add("1.stream", 0.5, position=[2, 6]),
    pl.scale("1.ffn.neurons", 3.0, neuron=[0, 4]),
    pl.knockout("1.attention.scores", key=1),
    pl.noise("embed.token", 0.3, seed=2),
)


def shapes():
    yield tiny_gpt2()
    masks, block = (Window(3),), Parallel(2)
    yield build(Config(50, 16, 2, 32, 4, n_kv_heads=2, positions=Rotary(), masks=masks, block=block, init=Init(0.5)))


def greedy(transformer, ids, count):
    """By whole passes in which the edits look on."""
    looks, made = plan(transformer, EDITS).looks(), list(ids)
    for _ in range(count):
        made.append(int(transformer(torch.tensor([made]), looks=looks)[0, -1].argmax()))
    return tuple(made[len(ids) :])


@pytest.mark.slow
@pytest.mark.parametrize("transformer", list(shapes()), ids=["gpt2", "parallel"])
def test_edits_hold_while_decoding_by_absolute_position(transformer):
    model = Model(transformer).edited(*EDITS)
    prompts = [[1, 2, 3, 4], [5, 6], [7, 8, 9]]
    expected = [greedy(transformer, prompt, 6) for prompt in prompts]
    assert [found.ids for found in model.generate(prompts, max_new_tokens=6)] == expected
    assert tuple(piece.id for piece in model.stream(prompts[1], max_new_tokens=6)) == expected[1]
    found = model.generate(prompts[0], max_new_tokens=6, trace=True)
    again = model.trace([*prompts[0], *found.ids])
    for name in again.names:
        torch.testing.assert_close(found.trace[name], again[name], atol=1e-11, rtol=1e-11, msg=name)
    assert found.trace.edits == again.edits == EDITS


def test_the_model_itself_is_unchanged_and_edits_add_up():
    model = Model(tiny_gpt2())
    before = model.trace([1, 2, 3])["logits"]
    once = model.edited(pl.zero("0.ffn.update"))
    twice = once.edited(pl.zero("1.ffn.update"))
    assert torch.equal(model.trace([1, 2, 3])["logits"], before)
    assert (model.edits, len(once.edits), len(twice.edits)) == ((), 1, 2)
    assert once.transformer is model.transformer
    both = model.edited(pl.zero("0.ffn.update"), pl.zero("1.ffn.update")).trace([1, 2, 3])["logits"]
    torch.testing.assert_close(twice.trace([1, 2, 3])["logits"], both)
    torch.testing.assert_close(model.trace([1, 2, 3]).edit(*twice.edits)["logits"], both)


def test_an_encoder_decoder_is_edited_on_both_sides():
    transformer = build(with_encoder(tiny_gpt2().config))
    model = Model(transformer, start_id=1)
    edits = (pl.zero("encoder.0.attention.heads", head=0), pl.zero("decoder.1.cross.heads", head=2))
    found = model.edited(*edits).generate([7, 8, 9], max_new_tokens=4, trace=True)
    looks = plan(transformer, edits).looks()
    text = torch.tensor([[1, *found.ids]])
    logits = transformer(text, looks=looks, source=torch.tensor([[7, 8, 9]]))
    assert tuple(logits[0].argmax(-1)[:-1].tolist()) == found.ids
    torch.testing.assert_close(found.trace["decoder.logits"], logits, atol=1e-11, rtol=1e-11)


def test_embeddings_are_those_of_the_edited_model_and_what_cannot_be_edited_is_said():
    model = Model(tiny_gpt2()).edited(pl.zero("1.ffn.update"))
    state = model.trace([1, 2, 3])["final.normed"][0].mean(0)
    torch.testing.assert_close(model.embed([1, 2, 3])[0], state)
    with pytest.raises(ValueError, match="beam search"):
        model.beams([1, 2])
    whole = model.edited(pl.map("0.stream", lambda x: x.flip(1), whole=True))
    torch.testing.assert_close(whole.trace([1, 2, 3])["0.stream"], model.trace([1, 2, 3])["0.stream"].flip(1))
    with pytest.raises(ValueError, match="all positions at once"):
        whole.generate([1, 2])
    with pytest.raises(ValueError, match="did you mean"):
        model.edited(pl.zero("0.fnn.update"))


def test_edits_may_be_named_as_builtins_are():
    assert pl.set("0.stream", 1.0).kind == "set"
    assert pl.map("0.stream", torch.tanh).kind == "map"


@pytest.mark.slow
def test_a_thousand_edits_leave_nothing_behind():
    model = Model(tiny_gpt2(torch.float32))
    base = model.trace([1, 2, 3, 4])

    def held() -> int:
        gc.collect()
        return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())

    base.edit(pl.add("0.stream", 1.0))
    before = held()
    for step in range(1000):
        base.edit(pl.add("1.stream", float(step), position=step % 4))
    assert held() == before

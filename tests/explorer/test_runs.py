"""Runs by the server, beside the same runs by the library."""

import pytest
import torch

import tiny
from explorer.letters import letters
from explorer.serving import ask, done, served
from pellucid.explorer.readings import as_grids
from pellucid.explorer.refusals import refusal, refused
from pellucid.explorer.resource_routes import packed, parameters_of
from pellucid.front import Model
from pellucid.inside.edits import add, knockout, scale, set_to, zero
from pellucid.inside.shown.neuron_reading import neuron_reading
from pellucid.inside.shown.resources import RESOURCES, address, answer
from pellucid.model.config import Bidirectional, Config, Init, LayerNorm, MaskedLanguage, PostNorm, RMSNorm, SwiGLU
from pellucid.model.rotary import Rotary

SIZES = {"vocab_size": 50, "context_length": 16, "n_layers": 2, "d_model": 24, "n_heads": 4, "init": Init(0.4)}
BOTH_WAYS = {"masks": (Bidirectional(),), "block": PostNorm(), "embedding_norm": True}
CONFIGS = {
    "gpt2": Config(**SIZES),
    "llama": Config(**SIZES, n_kv_heads=2, positions=Rotary(), norm=RMSNorm(), activation=SwiGLU(), qkv_bias=False),
    "post": Config(**SIZES, block=PostNorm(), norm=LayerNorm()),
    "bert": Config(**SIZES, **BOTH_WAYS, head=MaskedLanguage()),
    "bare": Config(**SIZES, **BOTH_WAYS, head=None),
    "marian": tiny.with_encoder(Config(**SIZES), layers=3),
}
IDS, SOURCE = [5, 6, 7, 9, 11], "defc"
EDITS = [zero("1.attention.heads", head=2), scale("0.ffn.neurons", 3.0, neuron=[1, 2], position=3)]


def models():
    words = letters()
    return {name: Model(tiny.build(config), words, name, start_id=1) for name, config in CONFIGS.items()}


@pytest.fixture(scope="module")
def made():
    return models()


@pytest.fixture(scope="module")
def url(made):
    with served(made.values()) as base:
        yield base


def run(url, model, edits=(), **prompt):
    """What the server says of a run."""
    prompt = {"ids": IDS, **prompt}
    body = {"model": model, **prompt, "edits": [edit.to_json() for edit in edits]}
    return done(ask(url, "/api/traces", body))


def test_status_says_what_there_is(url, made):
    status = ask(url, "/api/status").json
    assert [info["id"] for info in status["models"]] == list(made)
    families = ["decoder", "decoder", "decoder", "encoder", "encoder", "encoder-decoder"]
    assert [info["family"] for info in status["models"]] == families
    assert status["limits"] == {"characters": 20_000, "tokens": 1024, "edits": 64, "new_tokens": 256}
    assert (status["queue"], status["loading"], status["failed"]) == (0, None, None)
    assert {"smollm2", "gpt2"} <= set(status["known"])


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "marian"])
@pytest.mark.parametrize("edits", [[], EDITS], ids=["plain", "edited"])
def test_a_run_is_the_librarys(url, made, name, edits):
    info = run(url, name, edits)
    trace = made[name].trace(IDS).edit(*edits)
    kept = url.held.traces.get(info["id"]).run
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(kept.states, trace.states, strict=True))
    assert info["next"] == (None if name == "bare" else trace.top(10).to_json())
    assert (info["ids"], info["tokens"], info["bytes"]) == (IDS, trace.tokens(), trace.nbytes)
    assert [edit["json"] for edit in info["edits"]] == [edit.to_json() for edit in edits]
    assert ask(url, f"/api/traces/{info['id']}").json == info


@pytest.mark.parametrize("where", ["", "encoder.1.ffn.neurons", "decoder.0.cross.heads"])
def test_an_encoder_decoders_run_is_the_librarys(url, made, where):
    edits = [scale(where, 2.0)] if where else []
    info = run(url, "marian", edits, source=SOURCE)
    trace = made["marian"].trace(IDS, source=SOURCE).edit(*edits)
    kept = url.held.traces.get(info["id"]).run
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(kept.states, trace.states, strict=True))
    assert trace.source is not None
    assert kept.source is not None
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(kept.source.states, trace.source.states, strict=True))
    assert info["source_tokens"] == list(SOURCE)
    assert info["next"] == trace.top(10).to_json()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("resource", RESOURCES)
def test_what_a_run_is_asked_is_answered_as_the_function_does(url, made, name, resource):
    info = run(url, "marian", source=SOURCE) if name == "marian" else run(url, name)
    kept = url.held.traces.get(info["id"]).run
    prefix = kept.transformer.prefix
    needed = [name for name, each in parameters_of(RESOURCES[resource]).items() if each.default is each.empty]
    given = {name: f"{prefix}1.stream.mid" if name == "site" else 1 for name in needed}
    got = ask(url, f"/api/traces/{info['id']}/{address(resource, **given)}")
    expected = said(lambda: packed(answer(kept, resource, given)))
    assert (got.status, got.body) == (expected.status_code, bytes(expected.body))
    assert got.headers["content-type"] == expected.media_type


def said(call):
    """What is answered, or the refusal that says why not."""
    try:
        return call()
    except ValueError as error:
        return refused(refusal(error))


@pytest.mark.parametrize("name", ["llama", "marian"])
def test_progress_counts_the_layers(url, name):
    body = {"model": name, "ids": [7, 7, 7], "source": SOURCE if name == "marian" else None}
    layers = 2 + 3 * (name == "marian")
    steps = [("progress", {"stage": "trace", "done": at, "total": layers}) for at in range(layers + 1)]
    assert ask(url, "/api/traces", body).events[:-1] == steps
    assert [event for event, _ in ask(url, "/api/traces", body).events] == ["done"]
    prefix = "decoder." if name == "marian" else ""
    body["edits"] = [zero(f"{prefix}1.ffn.update").to_json()]
    again = [("progress", {"stage": "edit", "done": at, "total": layers}) for at in (0, layers)]
    assert ask(url, "/api/traces", body).events[:-1] == again


def test_what_comes_before_an_edit_stays_as_it_was_to_the_bit(url, made):
    before = url.held.traces.get(run(url, "gpt2")["id"]).run
    edit = set_to("0.attention.scores", 2.0, head=1, position=3, key=1)
    after = url.held.traces.get(run(url, "gpt2", [edit])["id"]).run
    for ours, theirs in zip(after.states, before.states, strict=True):
        assert torch.equal(ours[:, :3], theirs[:, :3])
    assert not torch.equal(after.states[-1][:, 3], before.states[-1][:, 3])


def test_scores_that_a_page_edits_are_the_librarys(url, made):
    temperature = scale("1.attention.scores", 0.5, head=0)
    edits = [set_to("0.attention.scores", [2.0, -1.0], head=1, position=3, key=[1, 2]), temperature]
    edits.append(knockout("0.attention.scores", key=0, position=4))
    edits.append(add("1.stream", torch.arange(24.0), position=2))
    info = run(url, "gpt2", edits)
    assert info["next"] == made["gpt2"].trace(IDS).edit(*edits).top(10).to_json()


def test_an_edit_of_a_position_that_the_text_has_not_is_refused(url):
    edits = [zero("1.stream", position=len(IDS)).to_json()]
    run(url, "gpt2")
    found = ask(url, "/api/traces", {"model": "gpt2", "ids": IDS, "edits": edits})
    assert found.status == 400
    assert f"reaches nothing: this text has positions 0..{len(IDS) - 1}" in found.json["error"]["message"]


def test_a_permanent_link_finds_the_same_run(url):
    first = run(url, "gpt2", EDITS)["id"]
    with served(models().values()) as other:
        assert run(other, "gpt2", EDITS)["id"] == first
        assert ask(other, f"/api/traces/{first}").json["id"] == first
    others = [run(url, "llama", EDITS), run(url, "gpt2", EDITS[::-1]), run(url, "gpt2"), run(url, "gpt2", ids=[5])]
    assert len({first, *(info["id"] for info in others)}) == 5


def test_an_edit_in_other_words_is_the_same_edit(url):
    plain = {"model": "gpt2", "ids": IDS}
    short = {"kind": "scale", "site": "0.ffn.update", "factor": 2}
    long = {**short, "factor": 2.0, "seed": 0, "whole": False, "full": False}
    found = [done(ask(url, "/api/traces", {**plain, "edits": [edit]}))["id"] for edit in (short, long)]
    assert found[0] == found[1]


def test_runs_are_let_go_when_they_hold_too_much_and_can_be_made_again():
    model = models()["gpt2"]
    one = model.trace(IDS).nbytes
    with served(model, held=2 * one + 100) as url:
        ids = [[at, *IDS[1:]] for at in range(3)]
        first, second, third = (run(url, "gpt2", ids=each)["id"] for each in ids)
        assert len(url.held.traces) == 2
        assert url.held.traces.nbytes == 2 * one
        gone = ask(url, f"/api/traces/{first}/next")
        assert (gone.status, gone.code) == (404, "unknown_trace")
        assert ask(url, f"/api/traces/{second}/next").status == 200  # it is the last used now
        assert run(url, "gpt2", ids=ids[0])["id"] == first
        assert ask(url, f"/api/traces/{third}").status == 404
        assert ask(url, f"/api/traces/{second}").status == 200


def test_a_models_own_edits_hold_and_are_not_the_requests():
    model = models()["gpt2"].edited(zero("0.ffn.update"))
    with served(model) as url:
        info = run(url, "gpt2", EDITS)
        assert info["next"] == model.trace(IDS).edit(*EDITS).top(10).to_json()
        assert len(info["edits"]) == 2
        card = ask(url, "/api/models/gpt2/card")
        assert (card.status, card.code) == (400, "invalid")
        assert "baked" in card.json["error"]["message"]


def test_a_report_card_is_the_librarys_and_made_once(made):
    model = Model(made["gpt2"].transformer, name="gpt2")
    with served(model) as url:
        first, second = (ask(url, "/api/models/gpt2/card") for _ in range(2))
    total = first.events[0][1]["total"]
    assert total == 2  # random tokens, and the weights: there are no words to read
    steps = [("progress", {"stage": "heads", "done": at + 1, "total": total}) for at in range(total)]
    assert first.events[:-1] == steps
    assert second.events == first.events[-1:]
    card = model.heads()
    assert done(first) == as_grids(card)
    assert done(first)["kinds"] == [list(kinds) for kinds in card.kinds]
    scores = {(each["name"], each["text"]): each["values"] for each in done(first)["scores"]}
    assert scores["induction", "repeated"][1][2] == float(card.scores("induction", "repeated").score[1, 2])


def test_what_fails_after_it_began_ends_with_an_error(url):
    events = ask(url, "/api/models/llama/card").events
    assert [name for name, _ in events] == ["progress", "error"]
    assert events[-1][1]["code"] == "invalid"
    assert "this vocabulary has no tokens" in events[-1][1]["message"]


def test_what_the_weights_of_a_neuron_say(url, made):
    got = ask(url, "/api/models/llama/neuron?layer=1&neuron=7&k=3")
    assert got.json == neuron_reading(made["llama"].transformer, made["llama"].tokenizer, 1, 7, 3)
    for wrong in ("layer=1", "layer=2&neuron=7", "layer=1&neuron=7&k=x", "layer=1&neuron=7&z=1"):
        assert ask(url, f"/api/models/llama/neuron?{wrong}").code == "invalid"

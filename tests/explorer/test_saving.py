"""What a file is made of: the answers that the page asked for, as the server gave them."""

import json

import pytest

import tiny
from explorer.letters import letters
from explorer.serving import ask, done, served
from pellucid.explorer import saving
from pellucid.front import Model
from pellucid.views.packed import Packed


@pytest.fixture
def url(monkeypatch):
    """A server whose files say what they would hold."""

    def one_file(state, responses, title):
        plain = {
            path: shown.to_bytes().hex() if isinstance(shown, Packed) else shown for path, shown in responses.items()
        }
        return json.dumps({"state": state, "responses": plain, "title": title})

    monkeypatch.setattr(saving, "one_file", one_file)
    with served(Model(tiny.tiny_gpt2(), letters(), "tiny")) as base:
        yield base


def test_a_file_holds_what_was_answered(url):
    info = done(ask(url, "/api/traces", {"model": "tiny", "text": "the <cat>"}))
    at = f"traces/{info['id']}"
    paths = [at, f"{at}/next", f"{at}/next?k=3&position=1", f"{at}/norm?site=0.attention.input", f"{at}/norms",
             "models/tiny/neuron?k=4&layer=1&neuron=3", "models/tiny/head?head=1&layer=0"]  # fmt: skip
    gone = ["traces/gone/next", f"{at}/none", "models/gone/neuron?layer=0&neuron=0", "../../etc/passwd", "status", ""]
    found = ask(url, f"/api/{at}/file", {"state": {"view": "heads"}, "paths": [*paths, *gone, *paths]})
    assert found.status == 200, found.body
    assert found.headers["content-type"].startswith("text/html")
    assert found.headers["content-disposition"] == f'attachment; filename="pellucid-tiny-{info["id"][:8]}.html"'
    assert found.json["state"] == {"view": "heads"}
    assert found.json["title"] == "the <cat> - tiny"
    assert list(found.json["responses"]) == paths
    for path, saved in found.json["responses"].items():
        answer = ask(url, f"/api/{path}")
        packed = answer.headers["content-type"] == "application/x-pellucid"
        assert saved == (answer.body.hex() if packed else answer.json), path


@pytest.mark.parametrize("query", ["k=x", "odd=1", "k=0", "position=99", "k=99999999999999999999"])
def test_an_answer_that_there_is_not_is_refused(url, query):
    trace = done(ask(url, "/api/traces", {"model": "tiny", "ids": [1]}))["id"]
    found = ask(url, f"/api/traces/{trace}/file", {"state": {}, "paths": [f"traces/{trace}/next?{query}"]})
    assert (found.status, found.code) == (400, "invalid")
    assert found.body == ask(url, f"/api/traces/{trace}/next?{query}").body


def test_a_parameter_that_is_needed(url):
    trace = done(ask(url, "/api/traces", {"model": "tiny", "ids": [1]}))["id"]
    found = ask(url, f"/api/traces/{trace}/file", {"state": {}, "paths": [f"traces/{trace}/norm"]})
    assert (found.status, found.code) == (400, "invalid")
    assert "site" in found.json["error"]["message"]


def test_a_report_card_is_in_the_file_once_it_was_made(url):
    trace = done(ask(url, "/api/traces", {"model": "tiny", "ids": [1]}))["id"]
    asked = {"state": {}, "paths": ["models/tiny/card"]}
    assert ask(url, f"/api/traces/{trace}/file", asked).json["responses"] == {}
    card = url.held.models.get("tiny").card = {"kinds": [["induction"]], "scores": [], "note": "so"}
    assert ask(url, f"/api/traces/{trace}/file", asked).json["responses"] == {"models/tiny/card": card}

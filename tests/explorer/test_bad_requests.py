"""Requests made of the server's own description and of nonsense: never an internal error, always the same form."""

import json
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from explorer.letters import letters
from explorer.serving import ask, connected, served
from pellucid.explorer.app import make_app
from pellucid.front import Model
from pellucid.model.config import Bidirectional, Config, MaskedLanguage

SCHEMA = make_app().openapi()
ROUTES = [(path, method) for path, methods in SCHEMA["paths"].items() for method in methods]
CODES = {
    "invalid", "unknown_trace", "unknown_model", "not_found", "not_allowed", "no_continuation", "empty", "busy",
    "too_many_characters", "too_many_tokens", "too_many_edits", "too_many_new_tokens", "too_many_paths", "too_large",
    "context_length_exceeded", "method_not_allowed",
}  # fmt: skip
MODELS = {
    "gpt2": Config(50, 16, 2, 8, 2),
    "bert": Config(50, 16, 1, 8, 2, masks=(Bidirectional(),), head=MaskedLanguage()),
    "both": tiny.with_encoder(Config(50, 16, 1, 8, 2)),
}


@pytest.fixture(scope="module")
def server():
    models = [Model(tiny.build(config), letters(), name, start_id=1) for name, config in MODELS.items()]
    with served(models, app={"load": lambda name: models[0]}, characters=40, tokens=20, new_tokens=6) as url:
        traces = []
        for model in models:
            source = "abc" if model.name == "both" else None
            body = {"model": model.name, "text": "the cat", "source": source}
            traces.append(ask(url, "/api/traces", body).events[-1][1]["id"])
        yield url, traces


# --- Values that requests are made of ---

numbers = st.one_of(
    st.integers(-3, 20), st.integers(), st.floats(), st.sampled_from([2**31, 2**63, -(2**63), 10**400, 1e308, -0.0])
)
words = st.one_of(
    st.text(max_size=30), st.sampled_from(["gpt2", "bert", "both", "the cat", "0.ffn.update", "\x00", "nan"])
)
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, words),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(words, inner, max_size=4)),
    max_leaves=8,
)
SITES = ["0.attention.scores", "0.ffn.update", "0.stream", "logits", "decoder.0.cross.heads", "encoder.0.stream", ""]
edits = st.fixed_dictionaries(
    {"kind": st.sampled_from(["zero", "set", "add", "scale", "noise", "knockout", "map", 1])},
    optional={
        "site": st.sampled_from(SITES),
        "value": anything, "factor": numbers, "seed": numbers, "keys": anything,
        **dict.fromkeys(["heads", "neurons", "positions", "at", "kv_heads"], st.lists(st.integers(-1, 9), max_size=3)),
    },
)  # fmt: skip
GOOD = {
    "model": st.sampled_from(list(MODELS)), "text": st.one_of(st.text("abc the", max_size=12), words),
    "ids": st.lists(st.integers(0, 49), max_size=20),
    "source": st.one_of(st.none(), words), "edits": st.lists(edits, max_size=3), "max_new_tokens": st.integers(0, 8),
    "temperature": st.floats(0, 2), "top_k": st.integers(0, 60), "top_p": st.floats(0, 1), "min_p": st.floats(0, 1),
    "seed": st.integers(0, 2**63), "stop": st.lists(words, max_size=2), "state": st.dictionaries(words, anything),
    "paths": st.lists(words, max_size=3), "name": words,
}  # fmt: skip
parameters = st.one_of(
    st.integers(-2, 20).map(str),
    words,
    numbers.map(str),
    st.sampled_from(["true", "1.stream", "0.attention.pattern", ""]),
)


@st.composite
def requests(draw):
    """A route, what stands in its path and behind it, and a body: bytes, or fields of which some are right."""
    path, method = draw(st.sampled_from(ROUTES))
    route = SCHEMA["paths"][path][method]
    rarely = draw(st.integers(0, 9)) == 5
    places = {"trace": draw(words if rarely else st.integers(0, 2)), "model": draw(words if rarely else GOOD["model"])}
    query = draw(queries([each for each in route.get("parameters", []) if each["in"] == "query"]))
    body = None
    if "requestBody" in route:
        reference = route["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        fields = list(SCHEMA["components"]["schemas"][reference]["properties"])
        body = draw(st.one_of(sound(fields), sound(fields), odd(fields), anything, st.binary(max_size=40)))
    return path, places, query, body


@st.composite
def queries(draw, known):
    """Parameters of which all are there and sound in their types, or of which some are not."""
    if not draw(st.booleans()):
        names = [each["name"] for each in known] or ["odd"]
        return draw(st.dictionaries(st.one_of(st.sampled_from(names), words), parameters, max_size=4))
    right = {"integer": st.integers(-1, 7), "number": st.floats(-1, 2), "boolean": st.sampled_from(["true", "false"])}
    site = st.sampled_from([*SITES, "0.attention.pattern", "final.normed"])
    sounds = {each["name"]: right.get(each["schema"]["type"], site) for each in known}
    found = draw(st.fixed_dictionaries({name: value.map(str) for name, value in sounds.items()}))
    needed = {each["name"] for each in known if each["required"]}
    return {name: value for name, value in found.items() if name in needed or draw(st.booleans())}


@st.composite
def sound(draw, fields):
    """A body that makes sense in its types, and often in what it says."""
    body = {name: draw(GOOD[name]) for name in fields if draw(st.booleans()) or name not in ("seed", "stop", "edits")}
    if "ids" in body:
        body.pop(draw(st.sampled_from(["text", "ids"])))
        body["source"] = "abc" if body["model"] == "both" else None
    return body


@st.composite
def odd(draw, fields):
    """A body of which some fields are missing or of another type."""
    chosen = draw(st.lists(st.sampled_from(fields), unique=True))
    return {name: draw(GOOD[name] if draw(st.booleans()) else anything) for name in chosen}


@pytest.mark.slow
@settings(max_examples=200)
@given(request=requests())
def test_no_request_is_answered_with_an_internal_error(server, request):
    url, traces = server
    path, places, query, body = request
    trace = places["trace"]
    places = {**places, "trace": traces[trace] if isinstance(trace, int) else trace}
    for name, value in places.items():
        path = path.replace(f"{{{name}}}", quote(value, safe="", errors="replace"))
    if query:
        path += f"?{urlencode(query, errors='replace')}"
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    check(ask(url, path, data))


def check(found):
    """An answer in one of the forms that there are."""
    if found.status >= 400:
        assert found.status < 500, found.body
        well_formed(found.json["error"])
        return
    assert found.status == 200
    kind = found.headers["content-type"].partition(";")[0]
    assert kind in ("application/json", "application/x-pellucid", "text/event-stream", "text/html")
    if kind == "application/json":
        assert isinstance(found.json, dict)
    if kind == "text/event-stream":
        names = [name for name, _ in found.events]
        assert set(names[:-1]) <= {"progress", "token"}
        assert names[-1] in ("done", "error")
        if names[-1] == "error":
            well_formed(found.events[-1][1])


def well_formed(error):
    assert set(error) == {"code", "message"}
    assert error["code"] in CODES
    assert error["message"]
    assert "\n" not in error["message"]


@settings(max_examples=60)
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"]),
    path=st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#?"), max_size=40),
)
def test_no_address_is_answered_with_an_internal_error(server, method, path):
    found = ask(server[0], f"/{path}", b"{}" if method in ("POST", "PUT", "PATCH") else None, method)
    assert found.status < 500 or path in ("", "index.html")
    if found.status >= 400 and method != "HEAD" and found.status != 503:
        well_formed(found.json["error"])


def test_the_server_is_as_it_was(server):
    url, traces = server
    assert ask(url, "/api/status").json["queue"] == 0
    assert ask(url, f"/api/traces/{traces[0]}/next").status == 200
    connected(url).close()

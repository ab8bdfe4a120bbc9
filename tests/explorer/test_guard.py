"""Who may ask, what may be sent, and what a browser is told; the page's files."""

import pytest

import tiny
from explorer.serving import ask, connected, done, served
from pellucid.explorer.guard import HEADERS
from pellucid.front import Model
from pellucid.inside.shown import resources
from pellucid.views.packed import Packed

BODY = {"model": "tiny", "ids": [1]}


@pytest.fixture(scope="module")
def model():
    return Model(tiny.tiny_gpt2(), name="tiny")


@pytest.fixture(scope="module")
def url(model):
    with served(model) as base:
        yield base


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8765", "127.0.0.1.evil.example", "localhost.evil.example", "192.168.1.5",
        "0.0.0.0", "", "[", "a@evil.example", "127.0.0.1@evil.example", "[::2]:80", "2130706433.evil",
    ],
)  # fmt: skip
def test_a_name_that_leads_here_from_elsewhere_is_refused(url, host):
    for path in ("/", "/api/status"):
        found = ask(url, path, headers={"Host": host})
        assert (found.status, found.code) == (403, "host")


@pytest.mark.parametrize("host", ["localhost", "LocalHost:99", "127.0.0.1", "127.0.0.2:80", "[::1]:8765"])
def test_this_machines_own_names_are_answered(url, host):
    assert ask(url, "/api/status", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    ("hosts", "host", "status"),
    [
        (["0.0.0.0"], "192.168.1.5:80", 200),
        (["::"], "[fe80::1]", 200),
        (["0.0.0.0"], "evil.example", 403),
        (["my.box"], "my.box:80", 200),
        (["my.box"], "other.box", 403),
        (["127.0.0.1"], "192.168.1.5", 403),
    ],
)
def test_a_server_that_lets_others_in_still_knows_its_names(model, hosts, host, status):
    with served(model, app={"hosts": hosts}) as url:
        assert ask(url, "/api/status", headers={"Host": host}).status == status


def test_a_page_of_another_site_may_not_ask(url):
    host = url.removeprefix("http://")
    others = [
        "https://evil.example",
        "null",
        "http://localhost:1",
        f"https://{host}",
        "http://127.0.0.1",
        "",
        "http://[",
    ]
    for origin in others:
        for path, body in (("/api/traces", BODY), ("/api/models", {"name": "gpt2"}), ("/api/status", None)):
            found = ask(url, path, body, headers={"Origin": origin})
            assert (found.status, found.code) == (403, "origin"), origin
    assert ask(url, "/api/traces", BODY, headers={"Origin": f"http://{host}"}).status == 200


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
def test_what_a_browser_asks_across_sites_is_refused(url, site, status):
    assert ask(url, "/api/status", headers={"Sec-Fetch-Site": site}).status == status
    assert ask(url, "/api/traces", BODY, headers={"Sec-Fetch-Site": site}).status == status
    assert ask(url, "/", headers={"Sec-Fetch-Site": site}).status != 403  # a link to the page may be followed


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "json"])
def test_what_a_form_can_send_is_refused(url, kind):
    found = ask(url, "/api/traces", BODY, headers={"content-type": kind})
    assert (found.status, found.code) == (415, "content_type")


def test_every_answer_carries_the_headers(url):
    answers = [
        ask(url, "/"), ask(url, "/page.js"), ask(url, "/api/status"), ask(url, "/api/none"),
        ask(url, "/api/traces", BODY),
        ask(url, "/", headers={"Host": "evil.example"}), ask(url, "/api/traces", b"{"), ask(url, "/openapi.json"),
    ]  # fmt: skip
    for answer in answers:
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        assert "access-control-allow-origin" not in answer.headers
    assert HEADERS["content-security-policy"].startswith("default-src 'self';")
    assert "unsafe" not in HEADERS["content-security-policy"]
    assert ask(url, "/api/status").headers["cache-control"] == "no-store"


def test_a_large_body_is_refused_however_it_is_sent(model):
    with served(model, body=1000) as url:
        found = ask(url, "/api/traces", b" " * 1001)
        assert (found.status, found.code) == (413, "too_large")
        assert "1,000" in found.json["error"]["message"]
        connection = connected(url)
        headers = {"content-type": "application/json", "transfer-encoding": "chunked"}
        connection.request("POST", "/api/traces", iter([b" " * 600] * 2), headers, encode_chunked=True)
        assert connection.getresponse().status == 413
        connection.close()
        assert ask(url, "/api/traces", b'{"model": "tiny", "ids": [1]}'.ljust(1000)).status == 200


@pytest.fixture
def folder(tmp_path):
    """A compiled page, and beside it what nobody may read."""
    compiled = tmp_path / "compiled"
    compiled.mkdir()
    for name in ("index.html", "page.js", "page.css", "built-from"):
        (compiled / name).write_text(f"the file {name}")
    (tmp_path / "secret.txt").write_text("secret")
    return compiled


def test_the_page_is_three_files(model, folder):
    with served(model, app={"page": folder}) as url:
        for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")):
            found = ask(url, path)
            assert (found.status, found.headers["content-type"]) == (200, f"{kind}; charset=utf-8")
            assert found.body.decode() == f"the file {path[1:] or 'index.html'}"
        assert ask(url, "/?a=1").status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt", "/%2e%2e/secret.txt", "/..%2fsecret.txt", "/page.js/../../secret.txt", "//secret.txt",
        "/built-from",
        "/%2fetc%2fpasswd", "/etc/passwd", "/..\\secret.txt", "/page.js%00.txt", "/page.js/", "/%",
        "/api/../../secret.txt",
    ],
)  # fmt: skip
def test_no_path_leaves_the_folder(model, folder, path):
    with served(model, app={"page": folder}) as url:
        found = ask(url, path)
        assert (found.status, found.code) == (404, "not_found")
        assert b"secret" not in found.body


def test_a_page_that_is_not_built_says_so(model, tmp_path):
    with served(model, app={"page": tmp_path}) as url:
        found = ask(url, "/")
        assert found.status == 503
        assert b"make page" in found.body
        assert b"pip install" in found.body
        assert ask(url, "/page.js").status == 404
        assert ask(url, "/api/status").status == 200


def test_another_method_is_refused_in_the_same_form(url):
    for method, path in (("DELETE", "/api/status"), ("GET", "/api/models"), ("POST", "/"), ("PUT", "/api/traces")):
        found = ask(url, path, {}, method)
        assert (found.status, found.code) == (405, "method_not_allowed")


def test_what_fails_inside_is_one_line_and_the_server_lives_on(model, monkeypatch, caplog):
    def broken(run):
        raise RuntimeError("a fault\nof two lines")

    monkeypatch.setitem(resources.RESOURCES, "next", broken)
    monkeypatch.setitem(resources.RESOURCES, "stages", lambda run: Packed({"x": float("nan")}, ()))
    monkeypatch.setitem(resources.RESOURCES, "values", lambda run: {"x": [float("nan"), 1.0]})
    with served(model) as url:
        id = done(ask(url, "/api/traces", BODY))["id"]
        for resource in ("next", "stages"):
            found = ask(url, f"/api/traces/{id}/{resource}")
            assert (found.status, found.code) == (500, "internal")
            assert "\n" not in found.json["error"]["message"]
        assert ask(url, f"/api/traces/{id}/values").json == {"x": [None, 1.0]}
        monkeypatch.setattr(model.transformer, "run", broken)
        assert ask(url, "/api/traces", {"model": "tiny", "ids": [2]}).events[-1][1]["code"] == "internal"
        monkeypatch.undo()
        assert ask(url, "/api/traces", {"model": "tiny", "ids": [2]}).events[-1][0] == "done"
    assert "a fault" in caplog.text


def test_what_is_no_request_is_refused_and_the_server_lives_on(url):
    connection = connected(url)
    connection.connect()
    connection.sock.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
    assert connection.sock.recv(1000).startswith(b"HTTP/1.1 400")
    connection.close()
    assert ask(url, "/api/status").status == 200

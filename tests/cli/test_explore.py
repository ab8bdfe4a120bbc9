"""`pellucid explore`: a server for a page; the page itself is tested in tests/explorer."""

import http.client
import json
import signal
import socket
import webbrowser
from importlib import import_module, util
from urllib.parse import urlsplit

import pytest

explore = import_module("pellucid.cli.explore")


@pytest.fixture
def serving(monkeypatch):
    """Commands serve nothing; the list of what they would have served."""
    found = []
    module = import_module("pellucid.explorer.serving")
    monkeypatch.setattr(module, "serve", lambda listening, names, host: found.append((list(names), host)))
    return found


@pytest.fixture
def opened(monkeypatch):
    found = []
    monkeypatch.setattr(webbrowser, "open", found.append)
    return found


@pytest.fixture
def addresses(monkeypatch):
    """Names are looked up here: tests ask no network."""
    known = {"0.0.0.0": ("127.0.0.1", 0), "127.0.0.1": ("127.0.0.1", 0), "a.file": "/no/such/folder/socket"}

    def look_up(host, port, **_):
        if len(host) > 63:
            host.encode("idna")
        if host not in known:
            raise socket.gaierror(-2, "Name or service not known")
        family = socket.AF_UNIX if host == "a.file" else socket.AF_INET
        return [(family, socket.SOCK_STREAM, 0, "", known[host])]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.fixture
def taken():
    """A port that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def status(url):
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
    connection.request("GET", "/api/status")
    found = json.loads(connection.getresponse().read())
    connection.close()
    return found


@pytest.mark.slow
def test_it_serves_the_model_and_ends_when_interrupted(start, tiny):
    process = start("explore", tiny, "--port", 0, "--no-browser")
    said = process.stdout.readline()
    assert said.startswith(f"{tiny} at http://127.0.0.1:")
    url = said.removeprefix(f"{tiny} at ").split()[0]
    found = status(url)
    while not found["models"]:
        assert found["failed"] is None
        assert found["loading"] == tiny
        found = status(url)
    assert [info["name"] for info in found["models"]] == [tiny]
    assert tiny in found["known"]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")


def test_the_address_is_printed_and_opened(call, serving, opened):
    code, out, err = call("explore", "--port", 0)
    assert (code, err) == (0, "")
    assert serving == [(["smollm2"], "127.0.0.1")]
    assert out == f"smollm2 at {opened[0]} (Ctrl-C ends it)\n"
    assert opened[0].startswith("http://127.0.0.1:")


def test_nothing_is_opened_where_that_is_said(ask, serving, opened, tiny):
    found = ask("explore", "smollm2", tiny, "--port", 0, "--no-browser")
    assert found["models"] == ["smollm2", tiny]
    assert found["url"].startswith("http://127.0.0.1:")
    assert serving == [(["smollm2", tiny], "127.0.0.1")]
    assert opened == []


def test_that_other_machines_are_let_in_is_said(call, serving, opened, addresses):
    code, _, err = call("explore", "--port", 0, "--host", "0.0.0.0")
    assert code == 0
    assert "whoever reaches 0.0.0.0 can use this server" in err
    assert opened[0].startswith("http://127.0.0.1:")
    assert serving == [(["smollm2"], "0.0.0.0")]


def test_a_port_in_use_is_one_line(call, serving, taken):
    code, out, err = call("explore", "--port", taken, "--no-browser")
    assert (code, out) == (2, "")
    assert err == f"pellucid: port {taken} of 127.0.0.1 is in use: --port 0 takes a free one\n"
    assert serving == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "70000"], "a port lies in 0..65535"),
        (["--port", "-1"], "a port lies in 0..65535"),
        (["--host", "no.such.host"], "'no.such.host' is no address of this machine"),
        (["--host", "a" * 64], "is no address of this machine: it cannot be a name of a host"),
        (["no/such/folder"], "no model 'no/such/folder'"),
        (["tiny/../none.gguf"], "no model 'tiny/../none.gguf'"),
        (["--host", "a.file"], "no server can listen at a.file, port 8765: "),
        (["smolml2"], "smollm2"),
        (["gpt2-xxl-none"], "expected a folder"),
        ([""], "the model's name is empty"),
    ],
)
def test_what_cannot_be_served_is_one_line(call, serving, addresses, arguments, said):
    code, out, err = call("explore", *arguments, "--no-browser")
    assert (code, out) == (2, "")
    assert err.startswith("pellucid: ")
    assert err.count("\n") == 1
    assert said in err
    assert serving == []


@pytest.mark.parametrize("missing", [["fastapi"], ["uvicorn"], ["fastapi", "uvicorn"]])
def test_what_is_not_installed_is_named(call, serving, monkeypatch, missing):
    found = util.find_spec
    monkeypatch.setattr(explore, "find_spec", lambda name: None if name in missing else found(name))
    code, out, err = call("explore", "--no-browser")
    assert (code, out) == (2, "")
    assert err == f"pellucid: explore needs {' and '.join(missing)}: pip install 'pellucid[explorer]'\n"

"""The explorer's server on a free loopback port, for the time of a test."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import uvicorn

from pellucid.explorer.app import make_app
from pellucid.explorer.settings import Settings
from pellucid.explorer.state import State
from pellucid.front import Model


class Url(str):
    """A server's address; `held` is all that the server holds."""

    held: State


@contextmanager
def served(model: Model | Sequence[Model], *, app: dict[str, Any] | None = None, **settings: int) -> Iterator[Url]:
    """Serve one model or several; yields the base URL, as "http://127.0.0.1:40123".

    `settings` are fields of Settings; `app` holds further arguments of make_app.
    """
    models = [model] if isinstance(model, Model) else list(model)
    made = make_app(models, Settings(**settings), **(app or {}))
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(made, log_level="warning", ws="none", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="uvicorn")
    thread.start()
    url = Url(f"http://127.0.0.1:{listening.getsockname()[1]}")
    url.held = made.state.held
    try:
        yield url
    finally:
        server.should_exit = True
        thread.join(timeout=30)
        listening.close()
        assert not thread.is_alive(), "the server did not end"


class Answer:
    """A server's answer: status, headers in small letters, and the body."""

    def __init__(self, response: http.client.HTTPResponse):
        self.status, self.body = response.status, response.read()
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    @property
    def json(self) -> Any:
        return json.loads(self.body, parse_constant=_no_number)

    @property
    def events(self) -> list[tuple[str, Any]]:
        """The events of a stream: name and data."""
        assert self.headers["content-type"].startswith("text/event-stream"), self.body
        return [event_of(block) for block in self.body.decode().split("\n\n") if block]

    @property
    def code(self) -> str:
        return self.json["error"]["code"]


def ask(url: str, path: str, body: Any = None, method: str = "", headers: dict[str, str] | None = None) -> Answer:
    """One request: GET, or POST of a body as JSON (bytes as they are)."""
    connection = connected(url)
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {} if data is None else {"content-type": "application/json"}
        connection.request(method or ("GET" if data is None else "POST"), path, data, {**sent, **(headers or {})})
        return Answer(connection.getresponse())
    finally:
        connection.close()


def connected(url: str) -> http.client.HTTPConnection:
    """A connection to a server."""
    where = urlsplit(url)
    assert where.hostname is not None
    return http.client.HTTPConnection(where.hostname, where.port, timeout=60)


def event_of(block: str) -> tuple[str, Any]:
    """One event of a stream: its name and data."""
    fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
    return fields["event"], json.loads(fields["data"], parse_constant=_no_number)


def done(answer: Answer) -> Any:
    """What a stream ended with."""
    assert answer.status == 200, answer.body
    name, data = answer.events[-1]
    assert name == "done", data
    return data


def _no_number(name: str) -> float:
    raise AssertionError(f"{name} is not JSON")

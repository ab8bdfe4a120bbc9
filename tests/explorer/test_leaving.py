"""Clients that leave free the work that was done for them; the model's steps are counted, and let go on one by one."""

import json
import threading

import pytest

import tiny
from explorer.paced import PATIENCE, Pace
from explorer.serving import ask, connected, done, event_of, served
from pellucid.front import Model
from pellucid.inside.shown import resources
from pellucid.model.config import Config, Init

LAYERS = 6
CONFIG = Config(50, 1024, LAYERS, 8, 2, init=Init(0.5))


class Client:
    """A client that reads a stream event by event, and may leave."""

    def __init__(self, url, path, body=None):
        self.connection = connected(url)
        headers = {} if body is None else {"content-type": "application/json"}
        data = None if body is None else json.dumps(body)
        self.connection.request("GET" if body is None else "POST", path, data, headers)
        self.response = None

    def read(self, events):
        """So many events."""
        self.response = self.response or self.connection.getresponse()
        assert self.response.status == 200
        found = []
        for _ in range(events):
            block = b""
            while not block.endswith(b"\n\n"):
                block += self.response.readline()
            found.append(event_of(block.decode().strip()))
        return found

    def leave(self):
        if self.response is not None:
            self.response.close()
        self.connection.close()


@pytest.fixture
def model():
    return Model(tiny.build(CONFIG), name="tiny")


def left(worker):
    """Until the server has noticed that whoever waits for the present job has left."""
    job = worker.running
    assert job is not None
    assert job._left.wait(PATIENCE), "the server did not notice"


def generating(**more):
    return {"model": "tiny", "ids": [1], "max_new_tokens": 250, **more}


def test_srv_5_a_client_that_leaves_a_stream_stops_the_model(model, capfd):
    pace = Pace(model.transformer)
    with served(model) as url:
        client = Client(url, "/api/generate", generating())
        pace.allow(3)
        assert [name for name, _ in client.read(3)] == ["token"] * 3
        pace.wait_for(4)
        client.leave()
        left(url.held.worker)
        pace.allow(10_000)
        assert url.held.worker.wait_until(0)
        assert pace.steps == 4
        assert len(done(ask(url, "/api/generate", generating(max_new_tokens=2)))["ids"]) == 2
        assert pace.steps == 6
    assert capfd.readouterr().err == ""


def test_srv_5_a_client_that_leaves_a_run_stops_it_between_two_layers(model, capfd):
    pace = Pace(model.transformer, layers=True)
    with served(model) as url:
        client = Client(url, "/api/traces", {"model": "tiny", "ids": [1, 2]})
        pace.allow(2)
        assert [data["done"] for _, data in client.read(3)] == [0, 1, 2]
        pace.wait_for(3)
        client.leave()
        left(url.held.worker)
        pace.allow(10_000)
        assert url.held.worker.wait_until(0)
        assert pace.steps == 3
        assert len(url.held.traces) == 0
        assert done(ask(url, "/api/traces", {"model": "tiny", "ids": [1, 2]}))["ids"] == [1, 2]
    assert capfd.readouterr().err == ""


def test_srv_5_an_edited_run_is_left_between_two_layers(model):
    edit = {"kind": "zero", "site": "0.attention.heads", "heads": [1]}
    with served(model) as url:
        done(ask(url, "/api/traces", {"model": "tiny", "ids": [1, 2]}))
        pace = Pace(model.transformer, layers=True)
        client = Client(url, "/api/traces", {"model": "tiny", "ids": [1, 2], "edits": [edit]})
        pace.allow(1 + 2)  # the first layer's attention is asked whether the edit changes anything
        assert [data["done"] for _, data in client.read(3)] == [0, 1, 2]
        pace.wait_for(4)
        client.leave()
        left(url.held.worker)
        pace.allow(10_000)
        assert url.held.worker.wait_until(0)
        assert pace.steps == 4
        assert len(url.held.traces) == 1


def test_srv_5_who_leaves_the_queue_costs_nothing(model, monkeypatch, capfd):
    asked = threading.Event()
    monkeypatch.setitem(resources.RESOURCES, "next", lambda run: asked.set())
    with served(model) as url:
        trace = done(ask(url, "/api/traces", {"model": "tiny", "ids": [1]}))["id"]
        pace = Pace(model.transformer)
        first = Client(url, "/api/generate", generating())
        pace.wait_for(1)
        waiting = [
            Client(url, f"/api/traces/{trace}/next"),
            Client(url, "/api/traces", {"model": "tiny", "ids": [2]}),
            Client(url, "/api/generate", generating()),
            Client(url, f"/api/traces/{trace}/file", {"state": {}, "paths": []}),
        ]
        queued(url, 1 + len(waiting))
        for client in waiting:
            client.leave()
        assert url.held.worker.wait_until(1, PATIENCE)
        first.leave()
        left(url.held.worker)
        pace.allow(10_000)
        assert url.held.worker.wait_until(0)
        assert pace.steps == 1
        assert not asked.is_set()
        assert len(url.held.traces) == 1
    assert capfd.readouterr().err == ""


def queued(url, length):
    """Until so many requests wait or are answered, as the server's status says."""
    for _ in range(10_000):
        if ask(url, "/api/status").json["queue"] == length:
            return
    raise AssertionError("the requests did not arrive")


def test_the_queue_has_an_end(model):
    pace = Pace(model.transformer)
    with served(model, waiting=2) as url:
        clients = [Client(url, "/api/generate", generating(max_new_tokens=1))]
        pace.wait_for(1)
        clients += [Client(url, "/api/generate", generating(max_new_tokens=1)) for _ in range(2)]
        queued(url, 3)
        refused = ask(url, "/api/generate", generating())
        assert (refused.status, refused.code) == (503, "busy")
        assert "at most 2, got 3" in refused.json["error"]["message"]
        clients[1].leave()
        assert url.held.worker.wait_until(2, PATIENCE)
        clients.append(Client(url, "/api/generate", generating(max_new_tokens=1)))
        pace.allow(10_000)
        for at in (0, 2, 3):
            assert [name for name, _ in clients[at].read(2)] == ["token", "done"]
            clients[at].leave()


def test_who_asks_while_the_server_ends_is_not_kept_waiting(model):
    pace = Pace(model.transformer)
    with served(model) as url:
        client = Client(url, "/api/generate", generating())
        pace.wait_for(1)
        url.held.worker.close()
        refused = ask(url, "/api/generate", generating())
        assert (refused.status, refused.code) == (503, "closing")
        pace.allow(10_000)
        assert url.held.worker.wait_until(0)
        assert pace.steps <= 2
        client.leave()

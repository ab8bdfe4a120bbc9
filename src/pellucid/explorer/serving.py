"""A server on a port of this machine, until it is interrupted."""

import socket
from collections.abc import Sequence

import uvicorn

from .app import make_app
from .listening import is_loopback


def serve(listening: socket.socket, names: Sequence[str], host: str) -> None:
    """Answer requests until the process is interrupted; the first of the models is loaded meanwhile.

    Requests that came since the port was opened have waited for this.
    """
    app = make_app(names=names, hosts=() if is_loopback(host) else (host,))
    config = uvicorn.Config(app, log_level="warning", ws="none", proxy_headers=False, timeout_graceful_shutdown=3)
    uvicorn.Server(config).run(sockets=[listening])

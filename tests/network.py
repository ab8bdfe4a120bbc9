"""No test reaches the network: an audit hook refuses every address that is not on this machine.

It sees what goes through Python's sockets in this process. A library whose own code opens sockets, and a child
process, are beyond it.
"""

import ipaddress
import sys
from typing import Any

TO_ADDRESS = {"socket.connect", "socket.sendto", "socket.sendmsg"}  # called with (socket, address)
TO_HOST = {"socket.getaddrinfo", "socket.gethostbyname"}  # called with (host, ...)


class NetworkRefusedError(RuntimeError):
    """Not an OSError: that would be taken for a network that is down, and worked around."""


def is_local(host: object) -> bool:
    """Whether a host, as sockets name it, is this machine."""
    name = host.decode() if isinstance(host, bytes) else host
    if name in (None, "", "localhost"):
        return True
    try:
        return ipaddress.ip_address(str(name).partition("%")[0]).is_loopback
    except ValueError:
        return False


def refuse(event: str, args: tuple[Any, ...]) -> None:
    """Audit hook: raise where a socket is about to leave this machine."""
    if event in TO_ADDRESS and isinstance(args[1], tuple):  # a Unix socket's address is a path, or nothing
        host = args[1][0]
    elif event in TO_HOST:
        host = args[0]
    else:
        return
    if not is_local(host):
        raise NetworkRefusedError(f"{event} to {host!r}: a test may not reach the network")


def forbid() -> None:
    """Refuse from now on, for as long as the process lives: audit hooks cannot be taken off."""
    sys.addaudithook(refuse)

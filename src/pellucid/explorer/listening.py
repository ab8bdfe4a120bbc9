"""A port of this machine to listen on; nothing heavy is imported for it."""

import errno
import ipaddress
import socket


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one. Raises ValueError where there is none to be had."""
    if not 0 <= port < 2**16:
        raise ValueError(f"a port lies in 0..65535 (0: any that is free), got {port}")
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it cannot be a name of a host"
        raise ValueError(f"{host[:60]!r} is no address of this machine: {reason}") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(128)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise ValueError(f"port {port} of {host} is in use: --port 0 takes a free one") from error
        raise ValueError(f"no server can listen at {host}, port {port}: {error.strerror}") from error
    return listening


def url_of(listening: socket.socket, host: str) -> str:
    """The address that a browser on this machine is sent to."""
    port = listening.getsockname()[1]
    if host in ("", "0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

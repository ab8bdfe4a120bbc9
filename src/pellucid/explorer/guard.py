"""Who may ask: the machine itself, by pages of this server alone; and what its answers allow a browser to do."""

import ipaddress
import logging
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .refusals import LOG, RefusedError, refused

HEADERS = {
    # The page's icon is an empty data: address.
    "content-security-policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """Stands before the app: refuses what comes from elsewhere or is too large, and puts `HEADERS` on every answer.

    A page of another site that a browser shows could else ask this server in the browser's name. So a request must name
    a host that is this machine (or one of `hosts`; where one of these is no loopback address, any address by number),
    its Origin must be this server, and it must not come across sites.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str], most_bytes: int):
        self.app, self.hosts, self.most_bytes = app, {host.strip("[]").lower() for host in hosts}, most_bytes
        self.open = any(not _is_loopback(host) for host in self.hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        started = False

        async def sent(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        try:
            self._check(scope)
            await self.app(scope, await self._read(scope, receive), sent)
        except RefusedError as error:
            await refused(error)(scope, receive, sent)
        except Exception as error:
            logging.getLogger(LOG).error("a request failed", exc_info=error)
            if not started:
                fault = RefusedError(500, "internal", "the server failed at this: its log says more")
                await refused(fault)(scope, receive, sent)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_ours(host):
            raise RefusedError(
                403, "host", f"this server does not answer as {host[:60]!r}: --host names another address"
            )
        if origin is not None and origin.lower() != f"{scope['scheme']}://{host}".lower():
            raise RefusedError(403, "origin", f"pages of {origin[:60]!r} may not ask this server")
        if scope["path"].startswith("/api") and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise RefusedError(403, "origin", "pages of other sites may not ask this server")
        if (
            scope["method"] == "POST"
            and headers.get("content-type", "").partition(";")[0].strip() != "application/json"
        ):
            raise RefusedError(415, "content_type", "what is sent here is application/json")

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name == "localhost" or name in self.hosts or _is_loopback(name):
            return True
        return self.open and _address(name) is not None

    async def _read(self, scope: Scope, receive: Receive) -> Receive:
        """The body, read here, since only so much of it is read; and then what else is received."""
        body, more = bytearray(), scope["method"] not in ("GET", "HEAD")
        if not more:
            return receive
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                break
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self.most_bytes:
                raise RefusedError(413, "too_large", f"a request has at most {self.most_bytes:,} bytes, got more")
        told = False

        async def again() -> Message:
            nonlocal told
            if told:
                return await receive()
            told = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        return again


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _is_loopback(name: str) -> bool:
    found = _address(name)
    return name == "localhost" or (found is not None and found.is_loopback)

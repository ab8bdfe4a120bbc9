"""A real browser for the tests of pages, and a watch over what happens in it."""

import asyncio
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from network import is_local

NAMES = ("chromium", "chromium-browser", "google-chrome")
NAMED = "PELLUCID_CHROMIUM"  # the browser's program, where it is elsewhere
NEEDED = "PELLUCID_NEEDS_BROWSER"  # set where a test may not be skipped for want of a browser
WITHIN = ("file", "data", "blob", "about")  # kinds of addresses that reach no host
PATIENCE = 60_000  # milliseconds: a busy machine is slow


def program() -> str:
    """The browser's program; where there is none the test is skipped, or fails where it may not be."""
    if (named := os.environ.get(NAMED)) is not None:
        assert shutil.which(named), f"{NAMED} names {named!r}, which is no program"
        return named
    for name in NAMES:
        if found := shutil.which(name):
            return found
    reason = f"no browser to look at pages with: none of {', '.join(NAMES)} is here, and {NAMED} names none"
    return pytest.fail(reason) if os.environ.get(NEEDED) else pytest.skip(reason)


@dataclass
class Loop:
    """The event loop of Playwright, which is running all the time, as the thread's own or put aside.

    While it is the thread's own, no test in the same process could run another (asyncio.run).
    """

    own: asyncio.AbstractEventLoop | None = None

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The time in which a test speaks to the browser."""
        asyncio._set_running_loop(self.own)
        try:
            yield
        finally:
            self.own = asyncio._get_running_loop()
            asyncio._set_running_loop(None)


@contextmanager
def opened(loop: Loop) -> Iterator[Browser]:
    """Chromium without a window, in which every name of another host is unknown."""
    sandbox = [] if os.name == "nt" or os.geteuid() else ["--no-sandbox"]  # Chromium has no sandbox for root
    alone = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost, EXCLUDE [::1]"
    path = program()
    with loop.in_use():
        playwright = sync_playwright().start()
        browser = playwright.chromium.launch(executable_path=path, args=[*sandbox, alone])
    try:
        yield browser
    finally:
        with loop.in_use():
            browser.close()
            playwright.stop()
            loop.own = None


@dataclass
class Seen:
    """What pages asked for, and what went wrong in them."""

    requests: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        """Write down from now on."""
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("websocket", lambda socket: self.requests.append(socket.url))
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("crash", lambda _: self.faults.append("the page crashed"))
        page.on("dialog", self._dialog)
        page.on("console", self._console)

    def expect(self, pattern: str) -> None:
        """A fault that a test made by intention, which then is none; it must be there."""
        left = [fault for fault in self.faults if not re.search(pattern, fault)]
        assert len(left) < len(self.faults), f"no fault like {pattern!r} among {self.faults}"
        self.faults[:] = left

    def abroad(self) -> list[str]:
        """Requests that leave this machine."""
        parts = [(url, urlsplit(url)) for url in self.requests]
        return [url for url, part in parts if part.scheme not in WITHIN and not is_local(part.hostname or "?")]

    def check(self) -> None:
        """Nothing went wrong, and nothing left this machine."""
        assert not self.faults, f"the page's console: {self.faults}"
        assert not self.abroad(), f"requests to other machines: {self.abroad()}"

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            self.faults.append(f"{message.type}: {message.text} ({message.location.get('url', '')})")

    def _dialog(self, dialog) -> None:
        self.faults.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

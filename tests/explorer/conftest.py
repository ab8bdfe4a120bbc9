"""One browser for all tests of pages, and pages in it that are watched."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from explorer.browsing import PATIENCE, Loop, Seen, opened


@pytest.fixture(scope="session")
def loop() -> Loop:
    """Where Playwright's event loop stands."""
    return Loop()


@pytest.fixture(scope="session")
def browser(loop: Loop) -> Iterator[Browser]:
    """Chromium; without one the test is skipped, or fails where CI says so."""
    with opened(loop) as browser:
        yield browser


@pytest.fixture
def seen() -> Seen:
    """What the test's pages asked for, and what went wrong in them."""
    return Seen()


@pytest.fixture
def new_page(browser: Browser, loop: Loop, seen: Seen) -> Iterator[Callable[..., Page]]:
    """Pages with the options of Playwright's new_context (viewport=, color_scheme=, ...).

    The test fails if anything in them leaves this machine, or anything but words of no weight is on the console.
    """
    contexts = []
    expect.set_options(timeout=PATIENCE)

    def make(**options) -> Page:
        usual = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce", "locale": "en-US"}
        context = browser.new_context(**(usual | options))
        context.set_default_timeout(PATIENCE)
        context.on("page", seen.watch)
        contexts.append(context)
        return context.new_page()

    with loop.in_use():
        yield make
        for context in contexts:
            context.close()
    seen.check()


@pytest.fixture
def page(new_page: Callable[..., Page]) -> Page:
    """A page, 1,280 x 800, light."""
    return new_page()

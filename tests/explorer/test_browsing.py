"""The watch over pages sees what it is there to see."""

import asyncio

import pytest

from explorer.browsing import NAMED, NEEDED, Seen, program


def test_what_goes_wrong_in_a_page_is_seen(page, seen):
    page.set_content("<script>console.error('one'); setTimeout(() => { throw Error('two') })</script><p>here")
    page.wait_for_function("document.querySelector('p')")
    page.evaluate("new Promise((done) => setTimeout(done, 10))")
    with pytest.raises(AssertionError, match=r"one.*two"):
        seen.check()
    seen.expect("one")
    seen.expect("two")
    with pytest.raises(AssertionError, match="no fault like 'three'"):
        seen.expect("three")


def test_a_request_to_another_machine_is_seen_and_fails(page, seen):
    page.set_content("<img src='http://pictures.invalid/x.png' onerror='document.title = \"refused\"'>")
    page.wait_for_function("document.title === 'refused'")
    assert seen.abroad() == ["http://pictures.invalid/x.png"]
    with pytest.raises(AssertionError):
        seen.check()
    seen.expect("ERR_NAME_NOT_RESOLVED")
    seen.requests.clear()


def test_this_machine_and_what_reaches_no_host_are_let_through():
    urls = ["http://127.0.0.1:80/x", "ws://localhost/y", "http://[::1]/", "file:///x", "data:,", "blob:null/1"]
    assert Seen([*urls, "http://192.168.0.1/", "http:///x"]).abroad() == ["http://192.168.0.1/", "http:///x"]


def test_another_event_loop_runs_beside_the_browser(browser):
    async def one() -> int:
        return 1

    assert browser.is_connected()
    assert asyncio.run(one()) == 1


def test_without_a_browser_a_test_is_skipped_or_fails(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(NAMED, raising=False)
    monkeypatch.delenv(NEEDED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="chromium, chromium-browser, google-chrome"):
        program()
    monkeypatch.setenv(NEEDED, "1")
    with pytest.raises(pytest.fail.Exception, match="no browser"):
        program()
    (tmp_path / "google-chrome").write_text("#!/bin/sh\n")
    (tmp_path / "google-chrome").chmod(0o755)
    assert program() == str(tmp_path / "google-chrome")
    monkeypatch.setenv(NAMED, "/nowhere/chromium")
    with pytest.raises(AssertionError, match="no program"):
        program()

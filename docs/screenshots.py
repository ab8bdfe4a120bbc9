"""Draws docs/explorer-*.png: every view of the explorer's page over SmolLM2, light and dark, in a real browser.

python docs/screenshots.py [FOLDER [WIDTH]]
"""

import base64
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

TEXT = "When Mary and John went to the store, John gave a drink to"
VIEWS: dict[str, dict[str, int]] = {  # what is chosen where it shows most
    "glance": {},
    "stream": {"state": 46},
    "attention": {"layer": 15, "head": 1},
    "heads": {"layer": 15, "head": 1},
    "ffn": {"layer": 12},
    "pass": {"layer": 15, "head": 1},
}
TALLEST = 1_500  # pixels: what is further down is more of the same
QUIET = 4_000  # milliseconds in which what a view asks for is there


@contextmanager
def explored() -> Iterator[str]:
    """The address of a server that was started for this."""
    command = [sys.executable, "-m", "pellucid", "explore", "smollm2", "--port", "0", "--no-browser", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield json.loads(server.stdout.readline())["url"]
    finally:
        server.terminate()
        server.wait()


def link(view: str, chosen: dict[str, int]) -> str:
    """A permanent link, as the page writes it."""
    state: dict[str, Any] = {"model": "smollm2", "text": TEXT, "sourceText": "", "edits": [], "view": view}
    state |= {"chosen": {"position": 13, "token": None, **chosen}, "comparing": "nothing"}
    state |= {"otherText": "", "otherModel": "", "ids": None}
    return "#" + base64.urlsafe_b64encode(json.dumps(state).encode()).decode().rstrip("=")


def draw(page: Page, url: str, view: str, path: Path) -> None:
    page.goto("about:blank")
    page.goto(f"{url}/{link(view, VIEWS[view])}")
    page.wait_for_selector("#view", timeout=120_000)
    page.wait_for_load_state("networkidle")
    page.wait_for_function("!document.querySelector('[aria-busy=true]')", timeout=120_000)
    page.wait_for_timeout(QUIET)
    tall = min(TALLEST, page.evaluate("document.documentElement.scrollHeight"))
    page.screenshot(
        path=path, full_page=True, clip={"x": 0, "y": 0, "width": page.viewport_size["width"], "height": tall}
    )
    print(path)


def main(folder: Path, width: int) -> None:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with explored() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for colours in ("light", "dark"):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=colours, bypass_csp=True)
            for view in VIEWS:
                draw(page, url.rstrip("/"), view, folder / f"explorer-{view}-{colours}.png")
        browser.close()


if __name__ == "__main__":
    given = sys.argv[1:]
    main(Path(given[0]) if given else Path(__file__).parent, int(given[1]) if len(given) > 1 else 1280)

"""The explorer's page over SmolLM2 in a real browser: how soon a text is seen, and how soon a pointed cell is marked.

    python bench/explorer.py [--rounds N]

Each round runs a text that was not run before, of about 30 tokens, and waits until nothing of the first view is being
read any more. Writes bench/explorer.md.
"""

import argparse
import gzip
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from importlib.metadata import version
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from report import processor

HERE = Path(__file__).parent
COMPILED = HERE.parent / "src" / "pellucid" / "views" / "compiled"
TEXT = "capital of France is Paris, the capital of Italy is Rome, the capital of Spain is Madrid, so it goes on"
SETTLED = "!document.querySelector('[aria-busy=true]') && !document.querySelector('progress')"
MARKED = """async () => {
  const canvas = document.querySelector('#view canvas');
  const box = canvas.getBoundingClientRect();
  const times = [];
  for (let at = 0; at < 60; at++) {
    const begun = performance.now();
    const where = {clientX: box.left + ((at * 37) % box.width), clientY: box.top + ((at * 13) % box.height)};
    canvas.dispatchEvent(new MouseEvent('mousemove', {bubbles: true, ...where}));
    await new Promise(requestAnimationFrame);
    times.push(performance.now() - begun);
  }
  return times;
}"""


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


def seconds_to_see(page: Page, text: str) -> tuple[float, float]:
    """From Enter until the first view stands, and until nothing in it is read any more."""
    page.fill("#text", text)
    before = page.evaluate("document.querySelectorAll('main .tokens button').length")
    page.evaluate("window.begun = 0; addEventListener('keydown', () => (window.begun ||= performance.now()), true)")
    page.press("#text", "Enter")
    page.wait_for_function(
        f"document.querySelector('#view') && document.querySelector('main > .tokens')"
        f" && document.querySelectorAll('main > .tokens button').length !== {before}",
        polling="raf",
    )
    seen = page.evaluate("(performance.now() - window.begun) / 1000")
    page.wait_for_function(SETTLED, polling="raf")
    return seen, page.evaluate("(performance.now() - window.begun) / 1000")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--out", type=Path, default=HERE / "explorer.md")
    chosen = options.parse_args()
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with explored() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900}, bypass_csp=True)  # to wait for expressions
        page.goto(url)
        page.wait_for_selector("button[type=submit]:not([disabled])", timeout=300_000)
        seconds_to_see(page, "Hello")
        seen, settled, tokens = [], [], 0
        for number in range(chosen.rounds):
            # Two lengths in turn: by its number of tokens a new run is told from the old one.
            first, last = seconds_to_see(page, f"{number} The {TEXT}{' it' * (number % 2)}")
            seen.append(first)
            settled.append(last)
            tokens = page.evaluate("document.querySelectorAll('main > .tokens button').length")
        page.click("#tab-stream")
        page.wait_for_function(SETTLED)
        page.wait_for_timeout(3000)
        frames = sorted(page.evaluate(MARKED))
        name = f"Chromium {browser.version}"
        browser.close()
    chosen.out.write_text(report(name, seen, settled, tokens, frames))
    print(chosen.out.read_text())


def report(browser: str, seen: list[float], settled: list[float], tokens: int, frames: list[float]) -> str:
    sizes = {name: len(gzip.compress((COMPILED / name).read_bytes())) for name in ("page.js", "page.css", "index.html")}

    listed = ", ".join(f"{name} {size / 1000:.0f}" for name, size in sizes.items())

    def middle(values: list[float]) -> str:
        return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"

    return f"""# The explorer's page

{date.today()}, {processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {version("torch")},
{browser} without a window. `python bench/explorer.py` makes this file.
SmolLM2, texts of {tokens} tokens, or one less, that were not run before, {len(seen)} rounds.

| what | measured |
| --- | --- |
| from Enter to the first picture, seconds | {middle(seen)} |
| and until nothing of that view is being read any more | {middle(settled)} |
| from a move of the mouse over the stream's map to the next frame, milliseconds | {middle(frames)} |
| the page, compressed | {sum(sizes.values()) / 1000:.0f} kB ({listed}) |
"""


if __name__ == "__main__":
    main()

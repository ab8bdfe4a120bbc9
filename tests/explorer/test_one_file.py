"""A view saved as one file opens without a server, asks for nothing, and shows the library's values."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from playwright.sync_api import Page, expect

from explorer.browsing import PATIENCE
from explorer.letters import letters
from hostile import HOSTILE, hostile
from pellucid.inside.shown.wanted import WANTED
from pellucid.inside.trace import Trace, trace
from pellucid.model.config import Bidirectional, MaskedLanguage, PostNorm
from tiny import arguments, build, random_ids, tiny_gpt2, with_encoder

FORMS = {
    "gpt2": {},
    "post-norm": {"block": PostNorm()},
    "bert": {"masks": (Bidirectional(),), "block": PostNorm(), "head": MaskedLanguage()},
    "headless": {"masks": (Bidirectional(),), "block": PostNorm(), "head": None},
}


def a_trace(form: str = "gpt2") -> Trace:
    if form in FORMS:
        return trace(tiny_gpt2(**FORMS[form]), random_ids(1, 7), tokenizer=letters())
    config = with_encoder(tiny_gpt2().config)
    model, source = build(config), arguments(config, 1, 8)["source"]
    assert model.encoder is not None
    return trace(model, random_ids(1, 7), tokenizer=letters(), source=trace(model.encoder, source, tokenizer=letters()))


def opened(page: Page, path: Path, seen) -> None:
    """Open a saved file and wait until nothing in it is still to come."""
    page.goto(path.as_uri())
    page.wait_for_selector('[role="tabpanel"]')
    _at_rest(page)
    page.evaluate("new Promise((done) => setTimeout(done, 300))")  # what is asked for after a pause, too
    _at_rest(page)
    assert {url for url in seen.requests if not url.startswith("data:")} == {path.as_uri()}


def _at_rest(page: Page) -> None:
    expect(page.locator("main [aria-busy=true]")).to_have_count(0, timeout=PATIENCE)
    expect(page.get_by_text(re.compile("^reading .*…$", re.IGNORECASE))).to_have_count(0, timeout=PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize("form", [*FORMS, "encoder-decoder"])
def test_all_that_a_view_asks_is_in_its_file(form, page, seen, tmp_path):
    run, lacking, layer = a_trace(form), {}, 0 if form == "encoder-decoder" else 1
    for view in WANTED:
        opened(page, run.show(view, layer=layer, head=2, position=4).save(tmp_path / "x.html"), seen)
        assert page.get_attribute('[role="tab"][aria-selected="true"]', "id") == f"tab-{view}"
        text = page.inner_text("main")
        if "not saved" in text or page.locator("main [role=alert]").count():
            lacking[view] = text
    assert not lacking


def test_the_heads_are_the_librarys(page, seen, tmp_path):
    run = a_trace()
    opened(page, run.show("heads", layer=1, head=2, position=4).save(tmp_path / "x.html"), seen)
    canvas = page.get_by_role("img", name=re.compile("The pattern of head 1.2"))
    canvas.focus()
    pattern = run["1.attention.pattern"][0, 2]
    for _ in range(7):
        canvas.press("ArrowUp")
    for query in range(7):
        for key in range(query + 1):
            said = page.locator(".pattern .said").inner_text()
            found = re.match(rf".* \({query}\) attends ([\d.e-]+) to .* \({key}\);", said)
            assert found, said
            assert float(found[1]) == pytest.approx(float(pattern[query, key]), abs=0.5 / 255 + 5e-4)
            canvas.press("ArrowRight")
        for _ in range(7):
            canvas.press("ArrowLeft")
        canvas.press("ArrowDown")


def test_a_browser_opens_what_was_packed(page, seen, tmp_path):
    run = a_trace()
    opened(page, run.show("heads").save(tmp_path / "x.html"), seen)
    bytes_ = page.evaluate(
        """async () => {
            const saved = JSON.parse(document.getElementById("pellucid-saved").textContent);
            const path = Object.keys(saved.responses).find((path) => path.includes("patterns?"));
            const bytes = Uint8Array.from(atob(saved.responses[path].packed), (char) => char.charCodeAt(0));
            const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
            return [...new Uint8Array(await new Response(stream).arrayBuffer())];
        }"""
    )
    body = np.array(bytes_[4 + int.from_bytes(bytes(bytes_[:4]), "little") :], np.uint8)
    lower = torch.tril_indices(7, 7)
    for layer in range(2):
        exact = run[f"{layer}.attention.pattern"][0][:, lower[0], lower[1]].numpy().flatten()
        start = layer * 112  # 4 heads of 28 numbers: a multiple of 8
        assert np.abs(body[start : start + 112] / 255 - exact).max() <= 0.5 / 255 + 1e-6


def hostile_trace() -> Trace:
    return trace(tiny_gpt2(), torch.arange(len(HOSTILE))[None], tokenizer=hostile())


@pytest.mark.slow
def test_vis_1_no_token_is_code_in_a_saved_file(page, seen, tmp_path):
    run = hostile_trace()
    assert run.tokens()[3] not in ("\n", ""), "whitespace is seen"
    for view in WANTED:
        opened(page, run.show(view, position=1).save(tmp_path / "x.html"), seen)
        assert page.evaluate("[...document.scripts].map((one) => one.type)") == ["application/json", "module"]
        assert page.locator("img, iframe, [onload], [onerror], [onmouseover]").count() == 0
        text = page.inner_text("main")
        assert [token for token in run.tokens() if token not in text] == []


@pytest.mark.parametrize("view", ["heads", "glance"])
def test_vis_1_a_notebook_shows_the_same_in_a_frame(view, page, seen, tmp_path):
    run = hostile_trace()
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><meta charset='utf-8'><body>{run.show(view)._repr_html_()}")
    page.goto(notebook.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator('[role="tabpanel"]').wait_for()
    assert page.locator("body > *").count() == 1
    assert [url for url in seen.requests if not url.startswith(("data:", "about:"))] == [notebook.as_uri()]
    assert HOSTILE[1] in frame.locator("main").inner_text()
    # The frame has an origin of its own: it reaches neither the notebook nor a network.
    child = page.frames[1]
    assert child.evaluate("(() => { try { return parent.document.title } catch { return 'refused' } })()") == "refused"
    assert child.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
    seen.expect("Content Security Policy|violates")
    seen.requests.clear()

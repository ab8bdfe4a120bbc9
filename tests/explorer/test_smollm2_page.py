"""Every view of a real model: it comes whole, says what to look for, and the logits beside it are the library's."""

import pytest
from playwright.sync_api import expect

import pellucid
from explorer.looking import link
from explorer.serving import served
from pellucid.inside.edits import zero

VIEWS = ("glance", "stream", "attention", "heads", "ffn", "pass")
TEXT = "When Mary and John went to the store, John gave a drink to"
POSITION = 13


@pytest.fixture(scope="module")
def model(smollm2_path):
    return pellucid.load(smollm2_path)


@pytest.fixture(scope="module")
def url(model):
    with served(model) as base:
        yield base


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_comes_whole(page, url, model, view):
    edits = [zero("23.attention.heads", head=4)]
    page.goto(f"{url}/#{link(view, model.name, edits, text=TEXT, layer=23, head=2, position=POSITION)}")
    expect(page.get_by_role("tab", selected=True)).to_have_id(f"tab-{view}")
    expect(page.locator("#view .look").first).to_be_visible()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    expect(page.locator("main [role=alert]")).to_have_count(0)
    expected = model.trace(TEXT).edit(*edits).logits_at(0, [POSITION])[0].topk(10)
    rows = page.locator("aside tr[data-id]")
    expect(rows).to_have_count(10)
    assert [int(rows.nth(at).get_attribute("data-id")) for at in range(10)] == expected.indices.tolist()
    shown = [float(rows.nth(at).locator(".logit").get_attribute("data-value")) for at in range(10)]
    assert shown == pytest.approx(expected.values.tolist(), abs=1e-4)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
def test_512_tokens(page, url, model):
    text = ("the cat sat on the mat and " * 74)[:-1]
    ids = model.encode(text)[:512]
    text = model.decode(ids)
    assert len(model.encode(text)) == 512
    page.goto(f"{url}/#{link('heads', model.name, text=text, layer=17, head=5, position=511)}")
    expect(page.get_by_label("The 512 tokens", exact=False)).to_be_visible()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    for view in VIEWS:
        page.locator(f"#tab-{view}").click()
        expect(page.locator("#view .look").first).to_be_visible()
    expect(page.locator("main [role=alert]")).to_have_count(0)

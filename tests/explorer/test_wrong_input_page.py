"""What a person can get wrong on the page: it is said, the page stays as true as it was, and there is a way on."""

import pytest
from playwright.sync_api import expect

from explorer.looking import link, models
from explorer.serving import served
from pellucid.inside.edits import Edit

REFUSED = "status of 400"


def shelf(name):
    raise ValueError(f"{name} is broken")


@pytest.fixture(scope="module")
def url():
    held = models()
    with served([held["gpt2"], held["llama"]], app={"load": shelf, "names": ["broken"]}) as url:
        yield url


def test_an_edit_that_cannot_be_made_is_said_and_removed_where_a_link_brought_it(page, url, seen):
    page.goto(f"{url}/#{link('heads', 'gpt2', [Edit('zero', '0.attention.heads'), Edit('zero', 'no.site')])}")
    expect(page.get_by_role("alert")).to_contain_text("there is no site 'no.site'")
    page.get_by_role("button", name="Remove: zero no.site").click()
    expect(page.get_by_role("tab")).to_have_count(6)
    expect(page.get_by_role("alert")).to_have_count(0)
    seen.expect(REFUSED)


def test_the_words_of_edits_stay_with_their_edits_where_the_run_fails(page, url, seen):
    page.goto(f"{url}/#{link('heads', 'gpt2', [Edit('zero', '0.attention.heads'), Edit('zero', '1.ffn.update')])}")
    edits = page.get_by_role("region", name="Edits")
    expect(edits.locator("li")).to_have_count(2)
    expect(edits.get_by_role("button", name="Copy as Python")).to_be_visible()
    second = edits.locator(".says").nth(1).inner_text()
    page.fill("#text", "\u05e9")
    edits.get_by_role("button", name="Remove:").first.click()
    expect(page.get_by_role("alert")).to_contain_text("no tokens for the bytes")
    expect(edits.locator(".says")).to_have_text([second])
    seen.expect(REFUSED)


def test_a_model_that_cannot_be_loaded_leaves_the_page_as_it_was(page, url):
    page.goto(f"{url}/#{link('heads', 'llama', [Edit('zero', '0.attention.heads')])}")
    choice = page.locator("header select")
    expect(page.get_by_role("tab")).to_have_count(6)
    choice.select_option("broken")
    expect(page.get_by_role("alert")).to_have_text("broken is broken")
    expect(choice).to_have_value("llama")
    expect(page.get_by_role("region", name="Edits").locator("li")).to_have_count(1)


def test_an_address_that_is_no_link_changes_nothing(page, url):
    page.goto(f"{url}/#{link('heads', 'llama')}")
    expect(page.get_by_role("tab")).to_have_count(6)
    page.evaluate("location.hash = 'junk'")
    expect(page.get_by_role("alert")).to_contain_text("no link that the page can read")
    expect(page.locator("header select")).to_have_value("llama")
    expect(page.get_by_role("tab", selected=True)).to_contain_text("Heads")


def test_what_stood_beside_a_run_goes_where_another_cannot(page, url, seen):
    page.goto(f"{url}/#{link('heads', 'gpt2')}")
    beside = page.get_by_role("region", name="Compare with")
    beside.get_by_role("combobox").select_option("text")
    beside.get_by_label("The other text").fill("hello me")
    beside.get_by_role("button", name="Run").click()
    expect(beside).to_contain_text("Beside it: hello me")
    beside.get_by_label("The other text").fill("\u05e9")
    beside.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_contain_text("no tokens for the bytes")
    expect(beside).not_to_contain_text("Beside it")
    seen.expect(REFUSED)


def test_a_link_to_a_model_that_is_not_loaded_keeps_its_edits(page):
    held = models()
    with served(held["gpt2"], app={"load": held.__getitem__, "names": ["llama"]}) as url:
        page.goto(f"{url}/#{link('heads', 'llama', [Edit('zero', '0.attention.heads')])}")
        expect(page.get_by_role("region", name="Edits").locator("li")).to_have_count(1)
        expect(page.locator("header select")).to_have_value("llama")
        expect(page.get_by_role("button", name="Copy as Python")).to_be_visible()
        page.goto("about:blank")  # what it still asks for would find no server

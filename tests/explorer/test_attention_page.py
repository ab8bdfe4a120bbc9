"""The view of one head in a browser: what is edited there, beside the same edits in Python."""

import base64
import json
import re

import pytest
import torch
from playwright.sync_api import Page, expect

import tiny
from explorer.letters import letters
from explorer.looking import tab_to
from explorer.serving import served
from pellucid.front import Model
from pellucid.inside.edits import scale, set_to
from pellucid.model.config import Bidirectional, Config, Init, MaskedLanguage, PostNorm, RMSNorm, SwiGLU
from pellucid.model.rotary import Rotary

SIZES = {"vocab_size": 50, "context_length": 512, "n_layers": 2, "d_model": 24, "n_heads": 4, "init": Init(0.6)}
BOTH_WAYS = {"masks": (Bidirectional(),), "block": PostNorm(), "embedding_norm": True}
CONFIGS = {
    "gpt2": Config(**SIZES),
    "llama": Config(**SIZES, n_kv_heads=2, positions=Rotary(), norm=RMSNorm(), activation=SwiGLU(), qkv_bias=False),
    "post": Config(**SIZES, block=PostNorm(), attention_scales=(0.7,)),
    "bert": Config(**SIZES, **BOTH_WAYS, head=MaskedLanguage()),
    "bare": Config(**SIZES, **BOTH_WAYS, head=None),
    "marian": tiny.with_encoder(Config(**SIZES)),
}
TEXT, SOURCE, LONG = "the cat", "a dog!", "abcdefghijklmnop" * 32
CHOSEN = {"layer": 1, "head": 2, "part": "attention", "position": 6, "key": 0, "state": 0, "neuron": 0, "token": None}


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    words = letters()
    return {name: Model(tiny.build(config), words, name, start_id=1) for name, config in CONFIGS.items()}


@pytest.fixture(scope="module")
def url(models):
    with served(list(models.values())) as base:
        yield base


def opened(page: Page, url: str, model: str, text: str = TEXT, **chosen) -> Page:
    """The view, with a text that has run."""
    state = {"model": model, "text": text, "sourceText": SOURCE, "edits": [], "view": "attention"}
    state |= {"chosen": {**CHOSEN, **chosen}, "comparing": "nothing", "otherText": "", "otherModel": "", "ids": None}
    page.goto(f"{url}/#{base64.urlsafe_b64encode(json.dumps(state).encode()).decode().rstrip('=')}")
    page.get_by_role("heading", name="2. Scores, mask, softmax").wait_for()
    return page


def traced(model: Model, text: str = TEXT):
    return model.trace(text, source=SOURCE) if model.config.encoder is not None else model.trace(text)


def probabilities(page: Page) -> dict[int, float]:
    """What the page gives the keys that are in sight."""
    found = page.locator("td.share").evaluate_all("all => all.map(each => [each.dataset.key, each.dataset.value])")
    return {int(key): float(value) for key, value in found}


def tried(page: Page) -> dict[int, float]:
    """The logits of the run with what is tried out, by token, once the newest has come."""
    expect(page.locator("section[aria-labelledby=logits-title]")).to_have_attribute("aria-busy", "false")
    return logits(page, "tried")


def logits(page: Page, which: str) -> dict[int, float]:
    rows = page.locator(f"[data-logits={which}] tr[data-id]")
    rows.first.wait_for()
    found = rows.evaluate_all("all => all.map(row => [row.dataset.id, row.querySelector('.logit').dataset.value])")
    return {int(token): float(value) for token, value in found}


def same_logits(found: dict[int, float], trace, position: int) -> None:
    (expected,) = trace.logits_at(0, [position])
    assert set(found) == set(expected.topk(10).indices.tolist())
    for token, value in found.items():
        assert value == pytest.approx(float(expected[token]), abs=1e-9)


def same_pattern(page: Page, trace, site: str, head: int, query: int) -> None:
    expected = trace[f"{site}.pattern"][0, head, query]
    found = probabilities(page)
    assert found
    for key, value in found.items():
        assert value == pytest.approx(float(expected[key]), abs=1e-6)


def typed(page: Page, key: int, value: str) -> None:
    field = page.locator(f"tr[data-row='{key}'] input[type=number]")
    field.fill(value)
    field.press("Enter")


FORMS = [*((name, "attention") for name in ("gpt2", "llama", "post", "bert")), ("marian", "cross")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "part"), FORMS)
def test_an_edited_score_moves_the_probabilities_and_the_models_logits(page, url, models, name, part):
    model = models[name]
    opened(page, url, name, part=part)
    base, site = traced(model), f"{model.transformer.prefix}1.{part}"
    same_pattern(page, base, site, 2, 6)
    same_logits(logits(page, "run"), base, 6)
    typed(page, 3, "4.5")
    edited = base.edit(set_to(f"{site}.scores", 4.5, head=2, position=6, key=3))
    same_pattern(page, edited, site, 2, 6)
    same_logits(tried(page), edited, 6)
    typed(page, 5, "-2")
    again = base.edit(set_to(f"{site}.scores", [4.5, -2.0], head=2, position=6, key=[3, 5]))
    same_pattern(page, again, site, 2, 6)
    expect(page.locator("p.told")).to_contain_text("The model")
    same_logits(tried(page), again, 6)
    page.get_by_role("button", name="Reset").click()
    same_logits(logits(page, "run"), base, 6)
    same_pattern(page, base, site, 2, 6)


def test_scaling_off_and_temperature_are_those_edits_in_python(page, url, models):
    model = models["post"]
    opened(page, url, "post", layer=0, head=1, position=5)
    base, site = traced(model), "0.attention"
    page.get_by_label(re.compile("scale by 0.7")).uncheck()
    unscaled = base.edit(scale(f"{site}.scores", 1 / 0.7, head=1))
    same_pattern(page, unscaled, site, 1, 5)
    same_logits(tried(page), unscaled, 5)
    field = page.get_by_role("spinbutton", name="temperature of the head")
    field.fill("2")
    field.press("Enter")
    hot = base.edit(scale(f"{site}.scores", 1 / 0.7, head=1), scale(f"{site}.scores", 0.5, head=1))
    same_pattern(page, hot, site, 1, 5)
    same_logits(tried(page), hot, 5)
    for which, trace in (("before", base), ("now", hot)):
        entropy = float(torch.special.entr(trace[f"{site}.pattern"][0, 1, 5]).sum())
        found = page.locator(f"[data-entropy={which}]").get_attribute("data-value")
        assert float(found) == pytest.approx(entropy, abs=1e-6)
    page.get_by_role("button", name="after the last token").click()
    expect(page.locator("[data-logits=tried]")).to_be_visible()
    same_logits(tried(page), hot, 6)


def test_what_is_tried_can_be_kept_and_tried_upon(page, url, models):
    opened(page, url, "gpt2")
    base, site = traced(models["gpt2"]), "1.attention.scores"
    typed(page, 1, "3")
    typed(page, 2, "2")
    note = page.get_by_text("Edits in force already change these scores")
    expect(note).to_be_hidden()
    page.get_by_role("button", name="Keep as edits").click()
    kept = base.edit(set_to(site, [3.0, 2.0], head=2, position=6, key=[1, 2]))
    expect(note).to_be_visible()
    expect(page.locator("section[aria-labelledby=edits-title] li")).to_have_count(1)
    expect(page.get_by_role("button", name="Reset")).to_be_disabled()
    same_pattern(page, kept, "1.attention", 2, 6)
    same_logits(logits(page, "run"), kept, 6)
    typed(page, 2, "-1")  # the score of this key is replaced, the other one stays
    again = base.edit(set_to(site, [3.0, -1.0], head=2, position=6, key=[1, 2]))
    same_pattern(page, again, "1.attention", 2, 6)
    same_logits(tried(page), again, 6)


def test_a_score_is_dragged_and_typed_with_the_keyboard_alone(page, url, models):
    opened(page, url, "gpt2", key=0)
    page.keyboard.press("4")
    expect(page.get_by_role("tab", name="Heads")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("3")
    page.get_by_role("heading", name="2. Scores, mask, softmax").wait_for()

    tab_to(page, "drag the score at key e (2)")
    before = page.evaluate("document.activeElement.valueAsNumber")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    dragged = page.evaluate("document.activeElement.valueAsNumber")
    assert dragged > before
    base, site = traced(models["gpt2"]), "1.attention.scores"
    same_logits(tried(page), base.edit(set_to(site, dragged, head=2, position=6, key=2)), 6)
    tab_to(page, "score at key e (2)")
    page.keyboard.press("Control+a")
    page.keyboard.type("-3.25")
    page.keyboard.press("Enter")
    edited = base.edit(set_to(site, -3.25, head=2, position=6, key=2))
    same_pattern(page, edited, "1.attention", 2, 6)
    same_logits(tried(page), edited, 6)


@pytest.mark.slow
def test_512_tokens_can_all_be_reached_and_only_those_in_sight_are_drawn(page, url, models):
    opened(page, url, "llama", LONG, position=400, head=3)
    base = traced(models["llama"], LONG)
    best = int(base["1.attention.pattern"][0, 3, 400].argmax())
    region = page.get_by_role("region", name=re.compile("^The scores of"))
    region.scroll_into_view_if_needed()
    expect(region.locator(f"tr[data-row='{best}']")).to_be_in_viewport()
    assert len(probabilities(page)) < 40
    same_pattern(page, base, "1.attention", 3, 400)
    for end, key in (("scrollHeight", 511), ("clientTop", 0)):
        region.evaluate(f"region => {{ region.scrollTop = region.{end} }}")
        expect(region.locator(f"tr[data-row='{key}']")).to_be_visible()
        same_pattern(page, base, "1.attention", 3, 400)
    typed(page, 0, "9")
    edited = base.edit(set_to("1.attention.scores", 9.0, head=3, position=400, key=0))
    same_pattern(page, edited, "1.attention", 3, 400)
    same_logits(tried(page), edited, 400)
    page.get_by_label("rows by strength, not by position").check()
    expect(page.get_by_text("hidden by the mask")).to_have_count(0)
    tokens = page.get_by_role("group", name=re.compile("^The keys, shaded"))
    tokens.locator("button").nth(350).click()
    expect(region.locator("tr[data-row='350']")).to_be_visible()


def test_the_mask_is_shown_and_hidden_keys_cannot_be_edited(page, url):
    opened(page, url, "gpt2", position=2)
    rows = page.locator("tr[data-row]").filter(has_text="hidden by the mask")
    expect(rows).to_have_count(4)
    expect(rows.locator("input")).to_have_count(0)
    expect(page.locator("tr[data-row='2'] input[type=range]")).to_have_count(1)


def test_a_model_without_logits_says_so_and_still_shows_what_is_written(page, url, models):
    opened(page, url, "bare")
    expect(page.get_by_text("gives logits: what the head writes")).to_be_visible()
    typed(page, 1, "6")
    edited = traced(models["bare"]).edit(set_to("1.attention.scores", 6.0, head=2, position=6, key=1))
    expect(page.get_by_text("before it was")).to_be_visible()
    length = float(edited["1.attention.writes"][0, 6, 2].norm())
    told = page.get_by_text(re.compile("^A vector of length")).inner_text()
    assert float(told.split("length ")[1].split(",")[0]) == pytest.approx(length, abs=1e-3)


def test_it_fits_a_narrow_window(new_page, url):
    page = opened(new_page(viewport={"width": 800, "height": 700}), url, "llama", LONG, position=500)
    assert page.evaluate("document.documentElement.scrollWidth") == 800

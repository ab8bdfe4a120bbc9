"""The whole pass in a browser: its numbers beside the library's, and the way to the next token beside `generate`."""

import base64
import json

import pytest
import torch
from playwright.sync_api import Page, expect

import tiny
from explorer.letters import letters
from explorer.paced import PATIENCE, Pace
from explorer.serving import served
from pellucid.front import Model
from pellucid.generation import warp
from pellucid.model.config import Bidirectional, Config, Init, MaskedLanguage, Parallel, PostNorm, RMSNorm, SwiGLU
from pellucid.model.rotary import Rotary

SIZES = {"vocab_size": 50, "context_length": 128, "n_layers": 2, "d_model": 24, "n_heads": 4, "init": Init(0.6)}
BOTH_WAYS = {"masks": (Bidirectional(),), "block": PostNorm(), "embedding_norm": True}
CONFIGS = {
    "gpt2": Config(**SIZES),
    "llama": Config(**SIZES, n_kv_heads=2, positions=Rotary(), norm=RMSNorm(), activation=SwiGLU(), qkv_bias=False),
    "palm": Config(**SIZES, positions=Rotary(), block=Parallel(1)),
    "bert": Config(**SIZES, **BOTH_WAYS, head=MaskedLanguage(), pooler=True),
    "bare": Config(**SIZES, **BOTH_WAYS, head=None),
    "marian": tiny.with_encoder(Config(**SIZES, block=PostNorm()), layers=1),
}
TEXT, SOURCE, LAST = "the cat", "a dog!", 6
CHOSEN = {
    "layer": 0,
    "head": 0,
    "part": "attention",
    "position": LAST,
    "key": 0,
    "state": 0,
    "neuron": 0,
    "token": None,
}


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    words = letters()
    return {name: Model(tiny.build(config), words, name, start_id=1) for name, config in CONFIGS.items()}


@pytest.fixture(scope="module")
def url(models):
    with served(list(models.values()), models=len(models)) as base:
        yield base


def opened(page: Page, url: str, model: str, text: str = TEXT, **chosen) -> Page:
    """The view, with a text that has run."""
    state = {"model": model, "text": text, "sourceText": SOURCE, "edits": [], "view": "pass"}
    state |= {"chosen": {**CHOSEN, **chosen}, "comparing": "nothing", "otherText": "", "otherModel": "", "ids": None}
    page.goto(f"{url}/#{base64.urlsafe_b64encode(json.dumps(state).encode()).decode().rstrip('=')}")
    page.get_by_role("heading", name="The whole pass" if text else "Pellucid").first.wait_for()
    return page


def ids(page: Page) -> list[int] | None:
    """The ids that are run instead of the text, as the link says."""
    text = page.url.partition("#")[2]
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))["ids"]


def traced(model: Model, text=TEXT):
    return model.trace(text, source=SOURCE) if model.config.encoder is not None else model.trace(text)


def stage(page: Page, site: str):
    """The stage on the page, once it is this one: its first numbers, and its norm (None for a mask)."""
    article = page.locator(f".loads[aria-busy=false] article[data-site='{site}']")
    article.wait_for()
    values = article.locator(".numbers [data-value], .one[data-value]").evaluate_all(
        "all => all.map(e => e.dataset.value)"
    )
    norm = article.locator(".norm")
    return values, float(norm.get_attribute("data-value")) if norm.count() else None


def at(run, site, position: int) -> torch.Tensor:
    value = run[site.name][0]
    return (value.select(site.axes.index("T") - 1, position) if "T" in site.axes else value).flatten()


def sited(run):
    """The sites of a trace with the run and the position that each is shown of, in order."""
    from pellucid.inside.reading import all_sites

    for site in all_sites(run.transformer):
        encoded = site.name.startswith("encoder.")
        yield site, run.source if encoded else run, 0 if encoded else LAST


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_every_step_shows_the_numbers_of_the_model(page, url, models, name):
    opened(page, url, name)
    run = traced(models[name])
    page.locator("[data-steps]").focus()
    for site, owner, position in sited(run):
        values, norm = stage(page, site.name)
        expected = at(owner, site, position)
        assert norm == pytest.approx(float(expected[expected.isfinite()].norm()), rel=1e-6), site.name
        if site.axes[-1] == "V":
            expected = expected.topk(15).values
        shown = [float("-inf") if value == "hidden" else float(value) for value in values]
        assert shown == pytest.approx(expected[:12].tolist(), rel=1e-9, abs=1e-12), site.name
        page.keyboard.press("ArrowRight")
        if site.name.endswith(".scores"):
            page.locator(f"article[data-site='{site.name.replace('.scores', '.mask')}']").wait_for()
            page.keyboard.press("ArrowRight")
    if models[name].config.causal:
        expect(page.locator("[data-drawing=temperature]")).to_be_visible()


def test_all_numbers_of_a_stage_are_within_reach(page, url, models):
    opened(page, url, "gpt2", layer=1)
    page.get_by_role("button", name="attention heads").click()
    stage(page, "1.attention.heads")
    page.get_by_text("as a table").click()
    heads, words = traced(models["gpt2"])["1.attention.heads"][0, LAST], page.locator("article .words li")
    expect(words).to_have_count(heads.numel())
    said = words.all_inner_texts()
    name, _, value = said[6 * 3 + 2].partition(": ")
    assert name == "head 3, number 2"
    assert float(value.replace("−", "-")) == pytest.approx(float(heads[3, 2]), abs=5e-4)


def test_the_map_says_where_and_goes_there(page, url):
    opened(page, url, "gpt2")
    here = page.locator("nav.map [aria-current=step]")
    expect(here).to_have_attribute("aria-label", "embedding")
    page.locator("nav.map").get_by_role("button", name="layer 1").click()
    stage(page, "1.stream")
    expect(page.locator("label:has-text('layer') select").first).to_have_value("1")
    page.get_by_role("button", name="ffn up", exact=True).click()
    page.get_by_role("heading", name="The whole pass").click()
    page.keyboard.press("[")  # a layer is chosen for all views; the step stays the same
    stage(page, "0.ffn.up")
    expect(here).to_have_attribute("aria-label", "layer 0")


def test_what_is_the_same_in_every_layer_is_skipped(page, url):
    opened(page, url, "gpt2", layer=1)
    page.get_by_role("button", name="attention key").click()
    stage(page, "1.attention.key")
    page.get_by_label("skip what is the same in every layer").check()
    stage(page, "1.stream")
    page.locator("[data-steps]").focus()
    page.keyboard.press("ArrowRight")
    stage(page, "2.stream")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    stage(page, "0.ffn.update")


def test_playing_goes_to_the_end_and_stops_there(page, url):
    opened(page, url, "gpt2", layer=1)
    page.get_by_label("pace").select_option("quick")
    page.get_by_label("skip what is the same in every layer").check()
    page.locator("[data-steps]").focus()
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.locator("[data-drawn]").wait_for()
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    page.locator("[data-steps]").focus()
    page.keyboard.press("Space")
    stage(page, "embed.token")
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="Play")).to_be_visible()


CHOICES = {"temperature": 1.7, "top-k": 9, "top-p": 0.8, "min-p": 0.2}


def set_all(page: Page, choices: dict[str, float]) -> None:
    for label, value in choices.items():
        field = page.locator(f"input[type=number][aria-label='{label}']")
        field.fill(str(value))
        field.press("Enter")


def to_the_draw(page: Page, seed: int) -> None:
    page.locator("[data-steps]").focus()
    page.keyboard.press("End")
    page.locator("input.seed").fill(str(seed))
    expect(page.locator("[data-drawing] [aria-busy]")).to_have_attribute("aria-busy", "false")
    expect(page.get_by_text(f"(seed {seed})")).to_be_visible()


@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_each_step_of_drawing_is_that_of_generation(page, url, models, name):
    opened(page, url, name)
    model = models[name]
    to_the_draw(page, 3)
    set_all(page, CHOICES)
    logits = traced(model)[f"{model.transformer.prefix}logits"][0, -1:]
    steps = {"temperature": warp.temperature(logits, 1.7)}
    steps["top_k"] = warp.top_k(steps["temperature"], 9)
    steps["top_p"] = warp.top_p(steps["top_k"], 0.8)
    steps["min_p"] = warp.min_p(steps["top_p"], 0.2)
    expect(page.get_by_text(f"{int((steps['min_p'] > -torch.inf).sum())} left").last).to_be_visible()
    expect(page.locator("[data-drawing] [aria-busy]")).to_have_attribute("aria-busy", "false")
    page.get_by_role("button", name="all 40 candidates").click()
    rows = page.locator("[data-drawing] tr[data-id]")
    assert rows.count() == 40
    found = rows.evaluate_all(
        "all => all.map(row => [row.dataset.id, row.querySelector('[data-logit]').dataset.logit,"
        " Object.fromEntries([...row.querySelectorAll('[data-step]')].map(e => [e.dataset.step, e.dataset.value]))])"
    )
    assert {int(id) for id, _, _ in found} == set(logits[0].topk(40).indices.tolist())
    for id, logit, after in found:
        assert float(logit) == pytest.approx(float(logits[0, int(id)]), abs=1e-9)
        for step, expected in steps.items():
            assert float(after[step]) == pytest.approx(float(expected.softmax(-1)[0, int(id)]), abs=1e-9)
    u = float(page.locator("[data-u]").get_attribute("data-u"))
    drawn = int(page.locator("[data-drawn]").get_attribute("data-drawn"))
    assert drawn == int(warp.draw(steps["min_p"], torch.tensor([[u]], dtype=torch.float64)))
    piece = page.locator(f"[role=img] .piece[data-id='{drawn}']")
    left, width = piece.evaluate("e => [parseFloat(e.style.left) / 100, parseFloat(e.style.width) / 100]")
    assert left - 1e-6 <= u <= left + width + 1e-6


def test_what_is_appended_is_what_generate_continues_with(page, url, models):
    opened(page, url, "gpt2")
    model, sampling = models["gpt2"], {"temperature": 1.7, "top_k": 9, "top_p": 0.8, "min_p": 0.05}
    start = model.encode(TEXT)
    set_first = {"temperature": 1.7, "top-k": 9, "top-p": 0.8, "min-p": 0.05}
    to_the_draw(page, 5)
    set_all(page, set_first)
    expected = model.generate(start, max_new_tokens=1, seed=5, **sampling).ids
    expect(page.locator("[data-drawn]")).to_have_attribute("data-drawn", str(expected[0]))
    page.get_by_role("button", name="Append it").click()
    expect(page.locator("[aria-label^='The 8 tokens'] [aria-pressed=true]")).to_be_visible()
    assert ids(page) == [*start, *expected]
    expect(page.locator("#text")).to_have_value(model.decode([*start, *expected]))
    to_the_draw(page, 11)
    second = model.generate([*start, *expected], max_new_tokens=1, seed=11, **sampling).ids
    expect(page.locator("[data-drawn]")).to_have_attribute("data-drawn", str(second[0]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_greedy_tokens_are_those_of_generate(page, url, models, name):
    opened(page, url, name)
    model = models[name]
    page.locator("[data-steps]").focus()
    page.keyboard.press("End")
    set_all(page, {"temperature": 0})
    expect(page.get_by_text("without a random number")).to_be_visible()
    page.get_by_label("new tokens").fill("9")
    page.get_by_role("button", name="Generate").click()
    prompt = {"source": SOURCE} if name == "marian" else {}
    run = traced(model)
    start = run.ids[0].tolist()
    expected = generated(model, start, 9, **prompt)
    expect(page.locator("[data-ids]")).to_have_attribute("data-ids", " ".join(map(str, expected)))
    page.get_by_role("button", name="Append them").click()
    expect(page.locator(f"[aria-label^='The {len(start) + len(expected)} tokens']")).to_be_visible()
    assert ids(page) == [*start, *expected]


def generated(model: Model, start: list[int], count: int, **prompt) -> list[int]:
    """Greedy tokens one by one: the argmax of a trace's logits at its last position."""
    found = []
    for _ in range(count):
        run = model.trace([*start, *found], **prompt)
        found.append(int(run[f"{model.transformer.prefix}logits"][0, -1].argmax()))
        if found[-1] in model.eos_ids:
            break
    return found


def test_a_model_that_sees_both_ways_fills_a_place(page, url, models):
    opened(page, url, "bert", position=2)
    model = models["bert"]
    page.locator("[data-steps]").focus()
    page.keyboard.press("End")
    page.get_by_role("button", name="logits", exact=True).click()
    run = traced(model)
    candidates = run["logits"][0, 2].topk(8).indices.tolist()
    buttons = page.locator(".fills button")
    buttons.first.wait_for()
    assert buttons.evaluate_all("all => all.map(e => Number(e.dataset.id))") == candidates
    start = run.ids[0].tolist()
    put = next(id for id in candidates if id != start[2])
    page.locator(f".fills [data-id='{put}']").click()
    filled = [*start[:2], put, *start[3:]]
    expect(page.locator(f".fills [data-id='{put}']")).to_be_disabled()
    expect(page.locator("#text")).to_have_value(model.decode(filled))
    assert ids(page) == filled
    values, _ = stage(page, "logits")
    assert [float(value) for value in values] == pytest.approx(
        model.trace(filled)["logits"][0, 2].topk(12).values.tolist()
    )
    assert page.locator("[data-drawing]").count() == 0


def test_stopping_frees_the_server(page):
    model = Model(tiny.build(CONFIGS["gpt2"]), letters(), "gpt2")
    pace = Pace(model.transformer)
    pace.allow(1)
    with served(model) as url:
        opened(page, url, "gpt2")
        page.locator("[data-steps]").focus()
        page.keyboard.press("End")
        page.locator("[data-drawn]").wait_for()
        page.get_by_label("new tokens").fill("60")
        page.get_by_role("button", name="Generate").click()
        pace.allow(4)
        expect(page.get_by_text("3 of 60 tokens")).to_be_visible()
        pace.wait_for(5)
        job = url.held.worker.running
        page.locator("#generating").locator("..").get_by_role("button", name="Stop").click()
        assert job._left.wait(PATIENCE)
        pace.allow(10_000)
        assert url.held.worker.wait_until(0)
        assert pace.steps == 5
        expect(page.get_by_text("3 tokens: stopped by you.")).to_be_visible()
        page.get_by_role("button", name="Append them").click()
        expect(page.locator("[aria-label^='The 10 tokens']")).to_be_visible()
        page.goto("about:blank")  # what it still asks for would find no server


def test_by_the_keyboard_alone(page, url, models):
    opened(page, url, "gpt2", "")
    page.locator("#text").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("a cat")
    page.keyboard.press("Enter")
    page.locator("[aria-label^='The 5 tokens']").wait_for()
    page.keyboard.press("Tab")
    page.keyboard.press("6")
    reach(page, "e => e.hasAttribute('data-steps')")
    page.keyboard.press("ArrowDown")
    stage(page, "0.stream")
    page.keyboard.press("ArrowDown")
    stage(page, "1.stream")
    page.keyboard.press("ArrowUp")
    stage(page, "0.stream")
    page.keyboard.press("End")
    page.locator("[data-drawn]").wait_for()
    page.keyboard.press("ArrowLeft")
    page.locator("[data-drawing=min_p]").wait_for()
    page.keyboard.press("ArrowRight")
    reach(page, "e => e.getAttribute('aria-label') === 'temperature' && e.type === 'number'")
    page.keyboard.press("Control+A")
    page.keyboard.type("0")
    page.keyboard.press("Enter")
    expect(page.get_by_text("without a random number")).to_be_visible()
    reach(page, "e => e.textContent.startsWith('Append it')")
    page.keyboard.press("Enter")
    page.locator("[aria-label^='The 6 tokens']").wait_for()
    start = models["gpt2"].encode("a cat")
    assert ids(page) == [*start, *generated(models["gpt2"], start, 1)]


def reach(page: Page, which: str) -> None:
    """Go on by Tab until the focus is there."""
    for _ in range(120):
        page.keyboard.press("Tab")
        if page.evaluate(f"({which})(document.activeElement)"):
            return
    raise AssertionError(f"the focus never came to {which}")

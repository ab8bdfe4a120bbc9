"""The view of all heads in a browser: its pictures beside the run's patterns, and heads switched off beside Python."""

import base64
import json
import math
import re

import pytest
from playwright.sync_api import Locator, Page, expect

import tiny
from explorer.letters import letters
from explorer.looking import tab_to
from explorer.serving import served
from pellucid.front import Model
from pellucid.inside.circuit_by_hand import INDUCTION, START, induction_circuit
from pellucid.inside.edits import zero
from pellucid.inside.shown.head_reading import head_reading
from pellucid.inside.shown.head_writes import head
from pellucid.model.config import Bidirectional, Config, Init, MaskedLanguage, PostNorm, RMSNorm, SwiGLU, Window
from pellucid.model.rotary import Rotary

SIZES = {"vocab_size": 50, "context_length": 512, "n_layers": 2, "d_model": 24, "n_heads": 4, "init": Init(0.6)}
BOTH_WAYS = {"masks": (Bidirectional(),), "block": PostNorm(), "embedding_norm": True}
LLAMA = {"n_kv_heads": 2, "positions": Rotary(), "norm": RMSNorm(), "activation": SwiGLU(), "qkv_bias": False}
CONFIGS = {
    "gpt2": Config(**SIZES),
    "llama": Config(**SIZES, **LLAMA, masks=(Window(4),)),
    "post": Config(**SIZES, block=PostNorm(), attention_scales=(0.7,)),
    "bert": Config(**SIZES, **BOTH_WAYS, head=MaskedLanguage()),
    "bare": Config(**SIZES, **BOTH_WAYS, head=None),
    "marian": tiny.with_encoder(Config(**SIZES)),
    "deep": Config(**SIZES | {"n_layers": 30, "n_heads": 9, "d_model": 18, "d_ff": 8}),
}
TEXT, SOURCE, OTHER, LONG = "the cat", "a dog!", "one of two", "abcdefghijklmnop" * 32
CHOSEN = {"layer": 1, "head": 2, "part": "attention", "position": 6, "key": 3, "state": 0, "neuron": 0, "token": None}
FORMS = [*((name, "attention") for name in ("gpt2", "llama", "post", "bert")), ("marian", "cross")]


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    words = letters()
    built = {name: Model(tiny.build(config), words, name, start_id=1) for name, config in CONFIGS.items()}
    return built | {"circuit": Model(induction_circuit(), None, "circuit", start_id=START)}


@pytest.fixture(scope="module")
def url(models):
    with served(list(models.values())) as base:
        yield base


def opened(page: Page, url: str, model: str, text: str = TEXT, **chosen) -> Page:
    """The view, with a text that has run, and both pictures drawn."""
    state = {"model": model, "text": text, "sourceText": SOURCE, "edits": [], "view": "heads"}
    state |= {
        "chosen": {name: chosen.get(name, value) for name, value in CHOSEN.items()},
        "comparing": "nothing",
        "otherText": "",
        "otherModel": "",
        "ids": chosen.get("ids"),
    }
    page.goto(f"{url}/#{base64.urlsafe_b64encode(json.dumps(state).encode()).decode().rstrip('=')}")
    large(page).wait_for()
    expect(page.locator("section[aria-labelledby=heads-title] p.look")).to_be_visible()
    return page


def traced(model: Model, text: str = TEXT):
    return model.trace(text, source=SOURCE) if model.config.encoder is not None else model.trace(text)


def wall(page: Page) -> Locator:
    return page.get_by_role("img", name=re.compile("^The patterns of"))


def large(page: Page) -> Locator:
    return page.get_by_role("img", name=re.compile("^The pattern of head")).first


def point(page: Page, canvas: Locator, row: int, column: int, rows: int, columns: int, **click) -> None:
    """Point at a cell of a picture, or click it."""
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    where = {"x": box["width"] * (column + 0.5) / columns, "y": box["height"] * (row + 0.5) / rows}
    if click:
        canvas.click(position=where, modifiers=click["modifiers"])
    else:
        canvas.hover(position=where)


def read(page: Page, scope: str = "section[aria-labelledby=heads-title]") -> tuple[int, int, float]:
    """Query, key and number that stand below a large picture."""
    said = page.locator(f"{scope} p.said[data-value]").last
    return tuple(float(said.get_attribute(f"data-{name}")) for name in ("query", "key", "value"))  # pyright: ignore


def same_logits(page: Page, now, before, position: int = 6) -> None:
    """The table of what comes next without some heads, and beside what."""
    table = page.locator("section[aria-labelledby=off-title] table")
    (expected,), (was,) = now.logits_at(0, [position]), before.logits_at(0, [position])
    ids = expected.topk(10).indices.tolist()
    expect(page.locator("section[aria-labelledby=off-title] .loads")).to_have_attribute("aria-busy", "false")
    expect(table.locator("tr[data-id]")).to_have_count(10)
    expect(table.locator("tr[data-id]").first).to_have_attribute("data-id", str(ids[0]))
    rows = table.locator("tr[data-id]").evaluate_all(
        "all => all.map(row => [row.dataset.id, row.querySelector('.logit').dataset.value, row.innerText])"
    )
    assert [int(row[0]) for row in rows] == ids
    known = was.topk(40).indices.tolist()
    for id, value, words in ((int(row[0]), *row[1:]) for row in rows):
        assert float(value) == pytest.approx(float(expected[id]), abs=1e-9)
        change = words.split("\t")[-1]
        if id in known:
            assert float(change.replace("−", "-")) == pytest.approx(float(expected[id] - was[id]), abs=6e-4)
        else:
            assert change == "–"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "part"), FORMS)
def test_a_head_is_switched_off_by_a_click(page, url, models, name, part):
    model = models[name]
    opened(page, url, name, part=part)
    base, site = traced(model), f"{model.transformer.prefix}1.{part}.heads"
    off, edits = (
        page.locator("section[aria-labelledby=off-title]"),
        page.locator("section[aria-labelledby=edits-title] li"),
    )
    point(page, wall(page), 1, 3, 2, 4, modifiers=["Shift"])
    expect(off.get_by_role("heading", name="Without 1.3")).to_be_visible()
    same_logits(page, base.edit(zero(site, head=3)), base)
    page.get_by_role("button", name="Switch it off").click()  # the chosen one
    expect(off.get_by_role("heading", name="Without 1.2, 1.3")).to_be_visible()
    expect(edits).to_have_count(1)
    both = base.edit(zero(site, head=[2, 3]))
    same_logits(page, both, base)
    effect = page.locator("[data-name=effect]")
    if name == "bert":
        expect(effect).to_have_count(0)
    else:
        expect(effect).to_have_attribute("data-value", "0")
    point(page, wall(page), 1, 3, 2, 4, modifiers=["Shift"])
    expect(off.get_by_role("heading", name=re.compile("^Without 1.2$"))).to_be_visible()
    same_logits(page, base.edit(zero(site, head=2)), base)
    page.get_by_role("button", name="Switch all on").click()
    expect(off).to_have_count(0)
    expect(edits).to_have_count(0)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "part"), [*FORMS, ("bare", "attention")])
def test_what_is_read_under_the_cursor_is_the_runs_pattern(page, url, models, name, part):
    model = models[name]
    opened(page, url, name, part=part)
    base = traced(model)
    rows, keys = len(base.tokens()), len(SOURCE) if part == "cross" else len(base.tokens())
    exact = base[f"{model.transformer.prefix}1.{part}.pattern"][0, 2]
    for query, key in ((0, 0), (6, 2), (4, 4), (2, 5), (6, keys - 1)):
        point(page, large(page), query, key, rows, keys)
        found = read(page)
        assert found[:2] == (query, key)
        assert found[2] == pytest.approx(float(exact[query, key]), abs=0.002)
    page.mouse.move(0, 0)
    page.get_by_text("as a table").first.click()
    listed = page.get_by_role("region", name="All heads, as a table").locator("li")
    expect(listed).to_have_count(8)
    share = float(exact[6].max())
    expect(listed.nth(6)).to_contain_text(re.compile(rf"^Head 1.2: .* \(6\) attends most, {100 * share:.0f}(\.\d)?%"))
    told = head(base, 1, 2, part, 6)
    rows = page.locator("section[aria-labelledby=told-title] tbody tr[data-key]")
    shown = rows.evaluate_all("all => all.map(row => [row.dataset.key, row.innerText])")
    assert [int(key) for key, _ in shown] == [one["position"] for one in told["attended"]]
    if told["effect"] is not None:
        assert float(page.locator("[data-name=effect]").get_attribute("data-value")) == pytest.approx(told["effect"])
        words = [re.search(r"[+−][\d.e−]+", words)[0].replace("−", "-") for _, words in shown]  # pyright: ignore
        assert [float(word) for word in words] == pytest.approx([one["amount"] for one in told["attended"]], abs=6e-4)
    else:
        expect(page.locator("section[aria-labelledby=told-title]")).to_contain_text("raises no tokens")


COLOURS = """(canvas, cells) => {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  const pen = canvas.getContext("2d");
  const all = pen.getImageData(0, 0, canvas.width, canvas.height).data;
  const at = (share, size) => Math.floor(share * size);
  const seen = cells.map(([x, y]) => {
    const first = 4 * (at(y, canvas.height) * canvas.width + at(x, canvas.width));
    return [...all.slice(first, first + 3)];
  });
  return {panel: of("--panel"), heat: of("--heat"), seen};
}"""


def colour_of(found: dict, share: float) -> list[int]:
    """What a share of attention is painted in."""
    panel, heat = (
        [int(text[at : at + 2], 16) for at in (1, 3, 5)]
        if len(text) == 7
        else [17 * int(digit, 16) for digit in text[1:]]
        for text in (found["panel"], found["heat"])
    )
    part = math.sqrt(round(255 * share) / 255)
    return [round(a + (b - a) * part) for a, b in zip(panel, heat, strict=True)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_cell_of_every_picture_has_its_colour(new_page, url, models, scheme):
    page = opened(new_page(color_scheme=scheme), url, "gpt2")
    base = traced(models["gpt2"])
    cells = [(query, key) for query in range(7) for key in range(7)]
    found = large(page).evaluate(COLOURS, [[(key + 0.5) / 7, (query + 0.5) / 7] for query, key in cells])
    pattern = base["1.attention.pattern"][0, 2]
    for (query, key), seen in zip(cells, found["seen"], strict=True):
        expected = colour_of(found, float(pattern[query, key]))
        assert max(abs(a - b) for a, b in zip(seen, expected, strict=True)) <= 1
    box = wall(page).bounding_box()
    pitch = box["width"] / 4
    thumb = pitch - 3
    heads = [(layer, number) for layer in range(2) for number in range(4)]
    x, y = box["width"], box["height"]
    at = [
        [(number * pitch + thumb * (key + 0.5) / 7) / x, (layer * pitch + thumb * (query + 0.5) / 7) / y]
        for layer, number in heads
        for query, key in cells
    ]
    found = wall(page).evaluate(COLOURS, at)
    for (layer, number), first in zip(heads, range(0, len(at), 49), strict=True):
        pattern = base[f"{layer}.attention.pattern"][0, number]
        for (query, key), seen in zip(cells, found["seen"][first : first + 49], strict=True):
            expected = colour_of(found, float(pattern[query, key]))
            assert max(abs(a - b) for a, b in zip(seen, expected, strict=True)) <= 1


def test_heads_are_labelled_when_asked_and_a_kind_is_switched_off(page, url, models):
    """The circuit made by hand: a previous-token head feeds one induction head."""
    model, ids = models["circuit"], [START, 5, 6, 7, 5]
    opened(page, url, "circuit", "", ids=ids, position=4, head=0)
    page.get_by_role("button", name="Label all heads").click()
    legend = page.locator(".labels .kind")
    expect(legend.filter(has_text=re.compile("induction, 1"))).to_be_visible()
    kinds = model.heads().kinds
    assert kinds[INDUCTION[0]][INDUCTION[1]] == "induction"
    named = [kind for heads in kinds for kind in heads if kind]
    expect(page.locator("section[aria-labelledby=heads-title] .picture .kind")).to_have_count(len(named))
    expect(legend).to_have_count(len(set(named)))
    expect(page.get_by_role("heading", name="Head 1.0: induction")).to_be_visible()
    base = model.trace([ids])
    for kind in ("induction", "previous token"):
        legend.filter(has_text=kind).get_by_role("button").click()
        those = {layer: [at for at, own in enumerate(heads) if own == kind] for layer, heads in enumerate(kinds)}
        edits = [zero(f"{layer}.attention.heads", head=heads) for layer, heads in those.items() if heads]
        expect(page.locator("#off-title")).to_be_visible()
        off = base.edit(*edits)
        assert not off.logits_at(0, [4]).equal(base.logits_at(0, [4]))
        expect(page.locator("section[aria-labelledby=off-title] .loads")).to_have_attribute("aria-busy", "false")
        now = page.locator("section[aria-labelledby=off-title] tr[data-id='6'] .logit")
        if now.count():
            assert float(now.get_attribute("data-value")) == pytest.approx(float(off.logits_at(0, [4])[0, 6]), abs=1e-4)
        page.get_by_role("button", name="Switch all on").click()
        expect(page.locator("#off-title")).to_have_count(0)


def test_the_weights_are_read_when_asked(page, url, models):
    model = models["llama"]
    opened(page, url, "llama")
    page.get_by_role("button", name="Read the weights of head 1.2").click()
    for back in (0, 2):
        expected = head_reading(model.transformer, model.tokenizer, 1, 2, 12, back)
        for name, title in (("ov", "what it moves (OV)"), ("qk", "what it looks for (QK)")):
            table = page.get_by_role("region", name=title)
            rows = [[row[0], row[2]] for row in expected[name]["rows"]]
            expect(table.locator("tbody tr")).to_have_count(12)
            expect(table.locator("tbody tr").first).to_contain_text(rows[0][1])
            found = table.locator("tbody tr").evaluate_all(
                "all => all.map(row => [...row.cells].map(one => one.innerText))"
            )
            assert [row[:2] for row in found] == rows
            values = [float(row[2].replace("−", "-")) for row in found]
            assert values == pytest.approx([row[4] for row in expected[name]["rows"]], abs=0.051)
        if back == 0:
            page.get_by_label("tokens back").fill("2")
            page.get_by_role("button", name="Read the weights of head 1.2").click()


def test_the_same_head_on_a_second_text(page, url, models):
    opened(page, url, "gpt2")
    page.get_by_label("The second text").fill(OTHER)
    page.get_by_label("The second text").press("Enter")
    second = page.get_by_role("img", name=re.compile("on the second text"))
    exact = traced(models["gpt2"], OTHER)["1.attention.pattern"][0, 2]
    for query, key in ((9, 4), (3, 1)):
        second.click(position={"x": 1, "y": 1})
        second.focus()
        for _ in range(query):
            page.keyboard.press("ArrowDown")
        for _ in range(key):
            page.keyboard.press("ArrowRight")
        found = read(page, "section[aria-labelledby=beside-title]")
        assert found[:2] == (query, key)
        assert found[2] == pytest.approx(float(exact[query, key]), abs=0.002)


def test_all_of_it_with_the_keyboard_alone(page, url, models):
    opened(page, url, "gpt2", layer=0, head=0, position=5, key=0)

    tab_to(page, "The patterns of")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    expect(page.get_by_role("heading", name="Head 1.2", exact=True)).to_be_visible()
    page.keyboard.press("x")
    base = traced(models["gpt2"])
    expect(page.locator("#off-title")).to_be_visible()
    same_logits(page, base.edit(zero("1.attention.heads", head=2)), base, 5)
    tab_to(page, "The pattern of head 1.2")
    for key in ("ArrowUp", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    query, key, value = read(page)
    assert (query, key) == (4, 2)
    assert value == pytest.approx(float(base["1.attention.pattern"][0, 2, 4, 2]), abs=0.002)


@pytest.mark.slow
def test_512_tokens_and_270_heads_come_in_few_small_answers(page, url, models):
    sizes: dict[str, int] = {}
    page.on("response", lambda answer: sizes.update({answer.url: int(answer.headers.get("content-length", 0))}))
    opened(page, url, "deep", LONG, layer=7, head=4, position=400, key=12)
    wall(page).hover()
    page.wait_for_load_state("networkidle")
    patterns = {address: size for address, size in sizes.items() if "/patterns?" in address}
    thumbs = [size for address, size in patterns.items() if "size=64" in address]
    assert len(thumbs) == 3
    assert max(thumbs) < 265_000
    assert 561_600 < sum(thumbs) < 570_000
    exact = [size for address, size in patterns.items() if "size=0" in address]
    assert len(exact) == 1
    assert 131_328 < exact[0] < 132_500
    assert len(patterns) == 4
    pattern = traced(models["deep"], LONG)["7.attention.pattern"][0, 4]
    before = dict(sizes)
    for query, key in ((500, 250), (300, 20)):
        point(page, large(page), query, key, 512, 512)
        found = read(page)
        assert abs(found[0] - query) <= 1
        assert abs(found[1] - key) <= 1
        assert found[2] == pytest.approx(float(pattern[int(found[0]), int(found[1])]), abs=0.002)
    for layer, number in ((0, 0), (29, 8), (14, 3)):
        point(page, wall(page), layer, number, 30, 9)
        expect(wall(page)).to_have_attribute("aria-label", re.compile(rf"Head {layer}\.{number}: "))
    assert sizes == before, "pointing asks for nothing"


def test_a_model_without_logits_says_so(page, url):
    opened(page, url, "bare")
    page.get_by_role("button", name="Switch it off").click()
    expect(page.locator("section[aria-labelledby=off-title]")).to_contain_text("no head that gives logits")
    page.get_by_role("button", name="Read the weights of head 1.2").click()
    expect(page.locator("section[aria-labelledby=reading-title]")).to_contain_text("makes no logits")
    expect(page.get_by_role("region", name="what it looks for (QK)").locator("tbody tr")).to_have_count(12)


@pytest.mark.slow
@pytest.mark.parametrize("width", [800, 1280])
@pytest.mark.parametrize(("name", "text"), [("gpt2", TEXT), ("deep", LONG)])
def test_it_fits_the_window(new_page, url, width, name, text):
    page = opened(new_page(viewport={"width": width, "height": 700}), url, name, text, position=3)
    assert page.evaluate("document.documentElement.scrollWidth") == width

"""The view at a glance, in a browser: shapes and counts are those of the model and of the run."""

import re

import pytest
from playwright.sync_api import Page, expect

from explorer.looking import CONFIGS, SOURCE, TEXT, link, models, number, percent, table, traced
from explorer.serving import served
from pellucid.inside.edits import zero
from pellucid.inside.reading import all_sites
from pellucid.model.config import Parallel, PostNorm

SITES = {
    "Q": "query", "K": "key", "V": "value", "K, V": "key", "A": "pattern", "A V": "heads", "update": "update",
    "up": "up", "gate": "gate", "neurons": "neurons",
}  # fmt: skip


@pytest.fixture(scope="module")
def made():
    return models()


@pytest.fixture(scope="module")
def url(made):
    with served(made.values()) as base:
        yield base


def look(page: Page, url: str, model: str, edits=(), **chosen) -> None:
    page.goto(f"{url}/#{link('glance', model, edits, **chosen)}")
    page.wait_for_selector("#budget-title")


def shapes(page: Page) -> dict[str, str]:
    """The shape of every value on the way from text to logits."""
    rows = page.locator("section[aria-labelledby=flow-title] ol > li")
    return dict(rows.evaluate_all("all => all.map((li) => [li.children[0].innerText, li.lastElementChild.innerText])"))


def shape(*sizes: int) -> str:
    return " × ".join(f"{size:,}" for size in sizes)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_shapes_are_those_of_the_runs_values_and_counts_those_of_the_weights(page, url, made, name):
    look(page, url, name, position=3, layer=1)
    run = traced(made[name])
    check_way(page, run, name)
    check_block(page, run)
    check_budget(page, run.transformer)


def check_way(page, run, name):
    """From text to logits."""
    prefix, tokens = run.transformer.prefix, len(run.columns())
    shown = shapes(page)
    width = shape(*run[f"{prefix}0.stream"].shape[1:])
    assert shown["Text"] == f"{len(TEXT)} characters"
    assert shown["Tokens"] == f"{tokens} ids, of 50"
    assert shown["Embedding"] == shown["Decoder" if prefix else "Stack"] == width
    assert shown.get("Final norm") == (width if f"{prefix}final.normed" in run.names else None)
    assert shown.get("Prediction head") == (width if "head.normed" in run.names else None)
    if run.source is not None:
        assert shown["Encoder"] == shape(*run.source.states[-1].shape[1:])
    if name == "bare":
        assert "Logits" not in shown
        expect(page.get_by_text("this model has no head that makes logits")).to_be_visible()
    else:
        assert shown["Logits"] == shape(*run[f"{prefix}logits"].shape[1:])
        best = page.locator(".best .one").all_inner_texts()
        assert best == [f"{row[1]} {percent(row[3])}" for row in run.top(4)]
    pairs = page.locator(".ids .pair").evaluate_all("all => all.map((pair) => pair.innerText.split('\\n'))")
    assert pairs == [[label, str(id)] for label, id in zip(run.tokens(), run.ids[0].tolist(), strict=True)]
    assert page.locator(".ids .pair.chosen").inner_text().startswith(run.tokens()[3])


def check_block(page, run):
    """Inside block 1."""
    prefix, config = run.transformer.prefix, run.transformer.config
    expect(page.locator("#block-title")).to_have_text("Inside block 1")
    parts = page.locator("section[aria-labelledby=block-title] .part")
    assert parts.count() == (3 if config.encoder else 2)
    for part, of in zip(["attention", *(["cross"] if config.encoder else []), "ffn"], parts.all(), strict=True):
        rows = of.locator("tr").evaluate_all("all => all.map((tr) => [...tr.children].map((cell) => cell.innerText))")
        assert [row[0] for row in rows].count("gate") == (part == "ffn" and config.gated)
        for value, _, said in rows:
            assert said == shape(*run[f"{prefix}1.{part}.{SITES[value]}"].shape[1:]), value
    norms = page.locator("section[aria-labelledby=block-title] .norm").count()
    read = [site.name for site in all_sites(run.transformer) if site.name.startswith(f"{prefix}1.")]
    assert norms == sum(name.endswith((".input.scale", ".sum.scale", ".norm.scale")) for name in read)
    form = {Parallel: "Parallel:", PostNorm: "Post-norm:"}.get(type(config.block), "Pre-norm:")
    expect(page.get_by_text(form)).to_be_visible()


def check_budget(page, transformer):
    """Every parameter is counted once, and areas are in proportion."""
    total = sum(weight.numel() for weight in transformer.parameters())
    expect(page.locator("#budget-title")).to_have_text(f"{total:,} parameters")
    rows = table(page, "The parameters, part by part")
    parts = {row[0]: int(row[2].replace(",", "")) for row in rows if len(row) == 4}
    counts = [int(row[2].replace(",", "")) for row in rows if len(row) == 4]
    assert sum(counts) == total
    if transformer.encoder is None:
        own = transformer.blocks[0]
        each = len(transformer.blocks)
        assert parts["feed-forward"] == each * sum(
            weight.numel() for key, weight in own.named_parameters() if re.match(r"ffn\.(up|gate|down)", key)
        )
        for row in rows:
            assert row[-1] == percent(int(row[-2].replace(",", "")) / total)
    areas = page.locator(".map .area")
    boxes = areas.evaluate_all("all => all.map((one) => [one.offsetWidth * one.offsetHeight, one.ariaLabel])")
    sizes = {re.sub(r"^(?:[\w' ]+: )?(.*?), .*", r"\1", label): area for area, label in boxes}
    whole = sum(sizes.values())
    for part, count in parts.items():
        if count / total > 0.05 and list(parts).count(part) == 1 and transformer.encoder is None:
            assert sizes[part] / whole == pytest.approx(count / total, rel=0.1), part


def test_the_encoders_block_is_shown_too(page, url, made):
    look(page, url, "marian", layer=1)
    page.get_by_label("of the encoder").check()
    expect(page.locator("#block-title")).to_have_text("Inside block 1 of the encoder")
    source = traced(made["marian"]).source
    assert source is not None
    said = page.locator("section[aria-labelledby=block-title] .part").first.locator(
        "tr", has_text="softmax of the scores"
    )
    assert said.locator(".shape").inner_text() == shape(*source["encoder.1.attention.pattern"].shape[1:])
    expect(said).to_contain_text("bidirectional")
    assert len(SOURCE) == source.ids.shape[1]


def test_what_is_chosen_here_is_chosen_everywhere(page, url):
    look(page, url, "gpt2")
    page.get_by_role("button", name="block 1, causal").click()
    expect(page.locator("#block-title")).to_have_text("Inside block 1")
    expect(page.get_by_role("combobox", name="layer")).to_have_value("1")
    page.get_by_role("button", name="Feed-forward layer").click()
    expect(page.get_by_role("tab", name="FFN and norm")).to_have_attribute("aria-selected", "true")
    page.get_by_role("tab", name="At a glance").click()
    page.get_by_role("button", name="Attention, 4 heads").click()
    expect(page.get_by_role("tab", name=re.compile("3 Attention"))).to_have_attribute("aria-selected", "true")


def test_an_area_says_its_formula(page, url, made):
    look(page, url, "llama")
    area = page.locator(".map").get_by_role("button", name="feed-forward")
    area.focus()
    config = made["llama"].config
    count = 2 * (3 * 24 * config.d_ff + 2 * config.d_ff + 24)
    expect(page.locator("section[aria-labelledby=budget-title] .said")).to_contain_text(number(count))
    expect(page.locator("tr.picked")).to_have_attribute("data-part", "feed-forward")


def test_one_sentence_says_what_the_model_makes_of_the_text_now(page, url, made):
    look(page, url, "gpt2")
    best = traced(made["gpt2"]).top(1).rows[0]
    expect(page.locator(".look")).to_contain_text(f"The model gives {best[1]} {percent(best[3])} to come next.")
    edit = zero("1.ffn.update")
    look(page, url, "gpt2", [edit])
    page.reload()
    best = traced(made["gpt2"], edit).top(1).rows[0]
    expect(page.locator(".look")).to_contain_text(f"The model gives {best[1]} {percent(best[3])} to come next.")


@pytest.mark.parametrize("width", [800, 1280])
def test_nothing_leaves_the_page_sideways(new_page, url, width):
    page = new_page(viewport={"width": width, "height": 800})
    for name in ("gpt2", "marian"):
        look(page, url, name, position=2)
        page.reload()
        page.wait_for_selector("#budget-title")
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0

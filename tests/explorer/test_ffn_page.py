"""The view of norms and feed-forward layers, in a browser: what it shows is what the library says."""

import base64
import json

import pytest
from playwright.sync_api import Page, expect

import pellucid
from explorer.browsing import PATIENCE
from explorer.letters import letters
from explorer.serving import served
from pellucid.front import Model
from pellucid.inside.edits import zero
from pellucid.inside.shown.ffn import ffn
from pellucid.inside.shown.neuron_reading import neuron_reading
from pellucid.inside.shown.norm import norm, norms
from pellucid.model.config import (
    Bidirectional,
    Config,
    Init,
    MaskedLanguage,
    Parallel,
    PostNorm,
    Relu,
    RMSNorm,
    SwiGLU,
)  # fmt: skip
from pellucid.model.rotary import Rotary
from pellucid.views.packing import unpacked
from tiny import build, with_encoder

SIZES = {"vocab_size": 50, "context_length": 16, "n_layers": 2, "d_model": 24, "n_heads": 4, "init": Init(0.4)}
BOTH_WAYS = {"masks": (Bidirectional(),), "block": PostNorm(), "embedding_norm": True}
CONFIGS = {
    "gpt2": Config(**SIZES),
    "llama": Config(**SIZES, positions=Rotary(), norm=RMSNorm(), activation=SwiGLU(), qkv_bias=False, ffn_bias=False),
    "palm": Config(**SIZES, block=Parallel(1), activation=Relu()),
    "post": Config(**SIZES, block=PostNorm()),
    "bert": Config(**SIZES, **BOTH_WAYS, head=MaskedLanguage()),
    "bare": Config(**SIZES, **BOTH_WAYS, head=None),
    "marian": with_encoder(Config(**SIZES)),
}
TEXT, SOURCE, LAYER, POSITION = "hello you", "a text", 1, 3
STRONGEST = "table[aria-label='The strongest neurons']"
ACTIVATIONS = {"GeluTanh": "GELU, tanh form", "Relu": "ReLU", "SwiGLU": "SiLU"}
BEFORE = "“before” is the run before the edits."


@pytest.fixture(autouse=True)
def patience():
    expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def made():
    return {name: Model(build(config), letters(), name, start_id=1) for name, config in CONFIGS.items()}


@pytest.fixture(scope="module")
def url(made):
    with served(made.values()) as base:
        yield base


def traced(model, *edits):
    source = {"source": SOURCE} if model.transformer.encoder is not None else {}
    return model.trace(TEXT, **source).edit(*edits)


def look(page: Page, url: str, model: str, *, edits=(), text=TEXT, **chosen) -> None:
    """Open the view by a link, and wait until all of it is there."""
    place = {"layer": LAYER, "head": 0, "part": "attention", "position": POSITION, "key": 0, "state": 0, "neuron": 0}
    state = {
        "model": model,
        "text": text,
        "sourceText": SOURCE,
        "edits": [edit.to_json() for edit in edits],
        "view": "ffn",
        "chosen": {**place, "token": None, **chosen},
        "comparing": "nothing",
        "otherText": "",
        "otherModel": "",
        "ids": None,
    }
    page.goto(f"{url}/#{base64.urlsafe_b64encode(json.dumps(state).encode()).decode().rstrip('=')}")
    page.wait_for_selector(STRONGEST)
    page.wait_for_selector("text=By the weights alone")


def number(value: float) -> str:
    """A number as the page writes it."""
    size = abs(value)
    if value == int(value):
        text = f"{int(value):,}"
    elif size >= 1e6 or size < 1e-4:
        mantissa, power = f"{value:.2e}".split("e")
        text = f"{mantissa}e{'+' if int(power) > 0 else ''}{int(power)}"
    else:
        text = f"{value:.{1 if size >= 100 else 3 if size >= 1 else 4}f}"
    return text.replace("-", "−")


def cells(page: Page, label: str) -> list[list[str]]:
    """The texts of a table's body, row by row."""
    return page.locator(f"table[aria-label^='{label}'] tbody tr").evaluate_all(
        "rows => rows.map((row) => Array.from(row.children, (cell) => cell.innerText.trim()))"
    )


def named(page: Page, name: str) -> float:
    return float(page.locator(f"[data-name={name}]").get_attribute("data-value"))


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_shown_is_what_the_library_says(page, url, made, name):
    look(page, url, name)
    run, model = traced(made[name]), made[name]
    check_neurons(page, run)
    neuron = ffn(run, LAYER, POSITION).meta["strongest"][0]["neuron"]
    expect(page.get_by_role("heading", name=f"Neuron {LAYER}.{neuron}")).to_be_visible()
    check_reading(page, neuron_reading(model.transformer, model.tokenizer, LAYER, neuron, 8), neuron)
    check_norms(page, run)


def check_norms(page, run):
    layers = [each for each in norms(run)["norms"] if each["layer"] in (None, LAYER)]
    buttons = page.get_by_role("group", name="Which norm").get_by_role("button")
    expect(buttons).to_have_count(len(layers))
    assert buttons.all_inner_texts() == [each["says"].removeprefix(f"layer {LAYER}: ") for each in layers]
    for each, button in zip(layers, buttons.all(), strict=True):
        button.click()
        expect(page.locator("#view .token", has_text=each["reads"]).first).to_have_text(each["reads"])
        packed = norm(run, each["site"], POSITION)
        for scalar in ("variance", "eps", "scale"):
            assert named(page, scalar) == packed.meta[scalar]
        arrays = {array.name: unpacked(array)[:8].tolist() for array in packed.arrays}
        order = ["x", "centred", "divided", "gain", "gained", "shift", "result"]
        if each["kind"] == "RMSNorm":
            order.remove("centred")
        expected = [[number(value) for value in arrays[step]] for step in order if step in arrays]
        if "shift" not in arrays:
            expected = expected[: order.index("gained") + 1]
        assert [row[1:] for row in cells(page, "The norm step by step")] == expected


def check_neurons(page, run):
    meta = ffn(run, LAYER, POSITION).meta
    assert named(page, "active") == meta["counts"]["active"]
    for row, wanted in zip(page.locator(f"{STRONGEST} tbody tr").all(), meta["strongest"], strict=True):
        values = [
            float(cell) for cell in row.locator("[data-value]").evaluate_all("all => all.map((td) => td.dataset.value)")
        ]
        columns = ["gate", "up", "value", "size"] if meta["gated"] else ["up", "value", "size"]
        assert values == [wanted[column] for column in columns]
        assert row.locator("th").inner_text() == str(wanted["neuron"])
        words = [*(wanted["raises"] or []), *(wanted["lowers"] or [])]
        assert row.locator(".words .token").evaluate_all("all => all.map((word) => word.title)") == words
    assert (
        page.locator("canvas[aria-label^='The curve']")
        .get_attribute("aria-label")
        .startswith(
            f"The curve of {ACTIVATIONS[meta['activation']]} with the {meta['counts']['neurons']} pre-activations"
        )
    )


def check_reading(page, reading, neuron):
    for table in (reading["promoted"], reading["reads"]):
        for at in range(1, len(table["columns"]) if table else 0, 2):
            wanted = [[str(row[at]), number(row[at + 1])] for row in table["rows"]]
            title = table["columns"][at]
            assert cells(page, f"Neuron {LAYER}.{neuron} {title}") == wanted
    if reading["promoted"] is None:
        expect(page.get_by_text(reading["note"])).to_be_visible()


def test_the_lessons_vector_and_what_undoes_it(page, url):
    look(page, url, "gpt2")
    page.get_by_text("The same steps for your own numbers").click()
    label = "Your numbers step by step"
    result = ["−1.500", "−0.5000", "−0.5000", "−0.5000", "0", "0", "1", "2"]
    assert [row[1:] for row in cells(page, label)] == [
        ["2", "4", "4", "4", "5", "5", "7", "9"],
        ["−3", "−1", "−1", "−1", "0", "0", "2", "4"],
        *[result] * 3,
    ]
    expect(page.get_by_text("mean 5, variance 4, √(… + ε) 2")).to_be_visible()
    page.get_by_role("button", name="undo it").click()
    assert cells(page, label)[-1][1:] == ["2", "4", "4", "4", "5", "5", "7", "9"]
    page.get_by_role("combobox", name="norm").select_option("RMSNorm")
    page.get_by_label("γ", exact=True).fill("1")
    page.get_by_label("β", exact=True).fill("0")
    page.get_by_label("x", exact=True).fill("3 4 0 0 0")
    assert cells(page, label)[-1][1:] == [number(3 / 5**0.5), number(4 / 5**0.5), "0", "0", "0"]


def test_a_vector_of_the_model_gives_what_the_model_gives(page, url, made):
    look(page, url, "gpt2")
    page.get_by_text("The same steps for your own numbers").click()
    page.get_by_role("button", name="Take this token's vector").click()
    result = made["gpt2"].trace(TEXT)[f"{LAYER}.ffn.input"][0, POSITION].tolist()
    shown = [float(cell.replace("−", "-")) for cell in cells(page, "Your numbers step by step")[-1][1:]]
    assert shown == pytest.approx(result, abs=6e-4)


def test_what_is_no_vector_is_said(page, url):
    look(page, url, "gpt2")
    page.get_by_text("The same steps for your own numbers").click()
    x, gain = page.get_by_label("x", exact=True), page.get_by_label("γ", exact=True)
    for field, wrong, said in [
        (x, "", "write some numbers"),
        (x, "1 two", "“two” is no number"),
        (x, "3 3 3", "nothing to divide by"),
        (gain, "1 2 3", "γ takes one number or 8, one for each of x: got 3"),
    ]:
        before = field.input_value()
        field.fill(wrong)
        expect(page.get_by_role("alert")).to_contain_text(said)
        field.fill(before)
        expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "post", "bert"])
def test_a_neuron_switched_off_moves_the_logits_as_python_says(page, url, made, name):
    run = traced(made[name])
    neuron = ffn(run, LAYER, POSITION).meta["strongest"][0]["neuron"]
    edited = run.edit(zero(f"{LAYER}.ffn.neurons", neuron=neuron))
    look(page, url, name)
    page.get_by_role("button", name=f"Switch neuron {LAYER}.{neuron} off").click()
    panel = page.locator("#view")
    expect(panel.get_by_text(BEFORE)).to_be_visible()
    before, after = (each.logits_at(0, [POSITION])[0].tolist() for each in (run, edited))
    rows = panel.locator("tr[data-id]").all()
    assert len(rows) == 5
    for row in rows:
        at = int(row.get_attribute("data-id"))
        assert float(row.locator(".logit").get_attribute("data-value")) == pytest.approx(after[at], abs=1e-9)
        change = row.locator("td").last.inner_text().replace("−", "-")
        assert float(change) == pytest.approx(after[at] - before[at], abs=6e-4)
    expect(page.get_by_text(f"An edit changed {LAYER}.ffn.neurons.")).to_be_visible()
    page.get_by_role("button", name=f"Switch neuron {LAYER}.{neuron} on again").click()
    expect(page.get_by_text(f"An edit changed {LAYER}.ffn.neurons.")).to_have_count(0)
    expect(page.locator(f"{STRONGEST} tbody tr").first).to_have_attribute("data-neuron", str(neuron))


def test_one_token_alone_can_lose_a_neuron(page, url, made):
    run = traced(made["gpt2"])
    neuron = ffn(run, LAYER, POSITION).meta["strongest"][0]["neuron"]
    look(page, url, "gpt2")
    page.get_by_label("only at this token").check()
    page.get_by_role("button", name=f"Switch neuron {LAYER}.{neuron} off").click()
    expect(page.locator("#view").get_by_text(BEFORE)).to_be_visible()
    edited = run.edit(zero(f"{LAYER}.ffn.neurons", neuron=neuron, position=POSITION))
    row = page.locator("#view tr[data-id]").first
    wanted = edited.logits_at(0, [POSITION])[0].max()
    assert float(row.locator(".logit").get_attribute("data-value")) == pytest.approx(float(wanted), abs=1e-9)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_neurons_by_what_they_do_to_the_followed_token(page, url, made, name):
    look(page, url, name, token=7)
    page.get_by_role("combobox", name="strongest neurons by").select_option("token")
    expect(page.locator(f"{STRONGEST} thead")).to_contain_text("on h")
    meta = ffn(traced(made[name]), LAYER, POSITION, token=7).meta
    shown = page.locator(f"{STRONGEST} tbody tr").evaluate_all(
        """rows => rows.map((row) => {
            const numbers = row.querySelectorAll("[data-value]");
            return [row.dataset.neuron, numbers[numbers.length - 1].dataset.value];
        })"""
    )
    assert [[int(neuron), float(effect)] for neuron, effect in shown] == [
        [row["neuron"], row["effect"]] for row in meta["strongest"]
    ]


def test_an_edit_of_a_norm_is_said(page, url, made):
    edits = [zero(f"{LAYER}.ffn.input", position=POSITION)]
    look(page, url, "gpt2", edits=edits)
    expect(page.get_by_text(f"An edit changed {LAYER}.ffn.input;")).to_be_visible()
    assert cells(page, "The norm step by step")[-1] == ["after the edit", *["0"] * 8]


def focus_by_tab(page: Page, wanted: str) -> None:
    """Press Tab until what is wanted has the focus."""
    for _ in range(150):
        page.keyboard.press("Tab")
        if page.evaluate("(wanted) => document.activeElement.matches(wanted)", wanted):
            return
    raise AssertionError(f"Tab never reaches {wanted}")


def test_by_the_keyboard_alone(page, url, made):
    run = traced(made["gpt2"])
    look(page, url, "gpt2")
    before = ffn(run, LAYER, POSITION)
    up = next(unpacked(array) for array in before.arrays if array.name == "up")
    order, strongest = up.argsort(kind="stable").tolist(), before.meta["strongest"][0]["neuron"]
    focus_by_tab(page, "[aria-label='Which norm'] button")
    page.keyboard.press("Enter")
    expect(page.locator("[aria-label='Which norm'] button").first).to_have_attribute("aria-pressed", "true")
    focus_by_tab(page, "canvas[aria-label^='The 24 numbers']")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_text("features 1 to 8", exact=True)).to_be_visible()
    focus_by_tab(page, "canvas[aria-label^='The curve']")
    page.keyboard.press("ArrowLeft")
    neuron = order[order.index(strongest) - 1]
    expect(page.get_by_role("heading", name=f"Neuron {LAYER}.{neuron}", exact=True)).to_be_visible()
    page.keyboard.press("End")
    expect(page.get_by_role("heading", name=f"Neuron {LAYER}.{order[-1]}", exact=True)).to_be_visible()
    focus_by_tab(page, f"{STRONGEST} button")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=f"Neuron {LAYER}.{strongest}", exact=True)).to_be_visible()
    focus_by_tab(page, "button.main:not([type=submit])")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name=f"Switch neuron {LAYER}.{strongest} on again")).to_be_visible()
    expect(page.get_by_text(f"An edit changed {LAYER}.ffn.neurons.")).to_be_visible()


def test_another_layer_has_its_own_strongest_neuron(page, url, made):
    look(page, url, "gpt2", neuron=5)
    expect(page.get_by_role("heading", name=f"Neuron {LAYER}.5", exact=True)).to_be_visible()
    page.keyboard.press("[")
    strongest = ffn(traced(made["gpt2"]), 0, POSITION).meta["strongest"][0]["neuron"]
    expect(page.get_by_role("heading", name=f"Neuron 0.{strongest}", exact=True)).to_be_visible()


@pytest.mark.parametrize("width", [800, 1280])
def test_it_fits_the_window(new_page, url, width):
    page = new_page(viewport={"width": width, "height": 900})
    look(page, url, "llama")
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.slow
def test_smollm2(page, smollm2_path):
    model = pellucid.load(smollm2_path)
    text = "The capital of France is"
    with served(model) as url:
        look(page, url, model.name, text=text, layer=12, position=4)
        run = model.trace(text)
        packed = norm(run, "12.ffn.input", 4)
        assert named(page, "variance") == packed.meta["variance"]
        meta = ffn(run, 12, 4).meta
        shown = page.locator(f"{STRONGEST} tbody tr").evaluate_all("rows => rows.map((row) => row.dataset.neuron)")
        assert shown == [str(row["neuron"]) for row in meta["strongest"]]
        neuron = meta["strongest"][0]["neuron"]
        page.get_by_role("button", name=f"Switch neuron 12.{neuron} off").click()
        expect(page.locator("#view").get_by_text(BEFORE)).to_be_visible()
        edited = run.edit(zero("12.ffn.neurons", neuron=neuron))
        row = page.locator("#view tr[data-id]").first
        wanted = edited.logits_at(0, [4])[0, int(row.get_attribute("data-id"))].item()
        assert float(row.locator(".logit").get_attribute("data-value")) == pytest.approx(wanted, abs=1e-3)
        page.wait_for_load_state("networkidle")
        page.goto("about:blank")  # what it still asks for would find no server

"""The view of the residual stream, in a browser: map, cell, ledger and path are the library's."""

import re
from functools import partial

import pytest
import torch
from playwright.sync_api import Page, expect

from explorer.looking import CONFIGS, link, models, number, percent, signed, table, traced
from explorer.serving import served
from pellucid.inside.asking import account
from pellucid.inside.edits import zero
from pellucid.inside.geometry import angles, step_lengths, trajectory
from pellucid.inside.ledger import ledger
from pellucid.inside.reading import state_sites

POSITION, STATE = 3, 1
LONG = "hello you, this is a long text of more than sixty four tokens, each a letter"


@pytest.fixture(scope="module")
def made():
    return models()


@pytest.fixture(scope="module")
def url(made):
    with served(made.values()) as base:
        yield base


def look(page: Page, url: str, model: str, edits=(), **chosen) -> None:
    """Open the view and wait until all that it shows by itself is there."""
    page.goto(f"{url}/#{link('stream', model, edits, **{'position': POSITION, 'state': STATE, **chosen})}")
    page.wait_for_selector("[data-map] canvas")
    settled(page)


def settled(page: Page) -> None:
    """Wait until nothing is being read any more."""
    page.wait_for_timeout(250)  # longer than the view waits before it asks about a cell
    expect(page.locator("#view [aria-busy=true], #view [role=status]")).to_have_count(0)


def on_map(page: Page) -> dict[tuple[str, int], str]:
    """What the map says of every cell, from its table of words."""
    page.locator("[data-map] summary").click()
    page.locator("[data-map] li").first.wait_for()
    lines = page.locator("[data-map] li").all_inner_texts()
    page.locator("[data-map] summary").click()
    found = [re.match(r"(\S+) at position (\d+) \(.*?\)(; .*)", line, re.DOTALL) for line in lines]
    return {(each[1], int(each[2])): each[3] for each in found if each is not None}


def at_state(run, index: int, position: int) -> torch.Tensor:
    """The logits that the lens reads: the model's own end after this state."""
    return run.with_states((*run.states[:-1], run.states[index])).logits_at(0, [position])[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_the_map_the_cell_and_the_path_are_the_librarys(page, url, made, name):
    look(page, url, name)
    run = traced(made[name])
    check_map(page, run)
    check_cell(page, run, STATE, POSITION)
    check_path(page, run, POSITION)


def check_map(page, run):
    names, shown = state_sites(run.transformer), on_map(page)
    wanted = [name for name in names if name.endswith(".stream")]
    assert {state for state, _ in shown} == set(wanted)
    assert len(shown) == len(wanted) * len(run.columns())
    for (name, position), said in shown.items():
        index = names.index(name)
        state = run.states[index][0, position].double()
        length = re.search(r"length ([\d,.]+)", said)
        assert length is not None
        assert float(length[1].replace(",", "")) == pytest.approx(float(state.norm()), rel=1e-3, abs=1e-3)
        if run.transformer.unembed is None:
            assert "lens" not in said
            continue
        shares = at_state(run, index, position).softmax(-1)
        best, id = shares.max(-1)
        token = made_label(run, int(id))
        found = re.search(r"lens: (.*) (< 0\.1%|[\d.]+%), entropy ([\d.]+) nats", said)
        assert found is not None
        assert found[1] == token
        assert float(found[2].strip("<% ")) == pytest.approx(100 * float(best), abs=0.51)
        assert float(found[3]) == pytest.approx(float(torch.special.entr(shares).sum()), abs=6e-3)


def made_label(run, id: int) -> str:
    return run.tokenizer.labels([id])[0]


def check_cell(page, run, index, position):
    state, panel = run.states[index][0, position], page.locator("[data-cell]")
    expect(panel.locator("h2")).to_contain_text(f"{state_sites(run.transformer)[index]} at position {position}")
    assert float(panel.locator("[data-norm]").get_attribute("data-norm")) == pytest.approx(float(state.norm()))
    change = state - run.states[index - 1][0, position]
    assert float(panel.locator("[data-change]").get_attribute("data-change")) == pytest.approx(float(change.norm()))
    value = float(panel.locator(".ledger [data-value]").get_attribute("data-value"))
    if run.transformer.unembed is None:
        expect(panel.get_by_text("this model has no head that makes logits, so there is no lens")).to_be_visible()
        assert value == pytest.approx(float(state.norm()))
        return
    logits = at_state(run, index, position)
    best, ids = logits.topk(8)
    rows = panel.locator("tr[data-id]")
    assert [int(row.get_attribute("data-id")) for row in rows.all()] == ids.tolist()
    shown = rows.locator(".logit").evaluate_all("all => all.map((cell) => Number(cell.dataset.value))")
    assert shown == pytest.approx(best.tolist())
    if run.transformer.head is not None:
        expect(panel.get_by_text("Note: a masked-language logit stands behind its head's activation")).to_be_visible()
        return
    assert value == pytest.approx(float(best[0]))
    question = partial(ledger, token=int(ids[0]), minus=None, by="sublayer", index=index)
    expected = account(run, question, 0, position, run.prints).top(8)
    wanted = [[name, signed(amount)] for name, amount in expected.rows]
    reads = "" if index == len(run.states) - 1 else " as the lens reads it at .*"
    label = re.compile(f"^logit of [^ ]*{reads}, by sublayer$")
    shown = (
        panel.get_by_role("table", name=label)
        .locator("tr")
        .evaluate_all("all => all.map((row) => [row.children[0].innerText.trim(), row.children[2].innerText.trim()])")
    )
    assert shown == wanted


def check_path(page, run, position):
    path = trajectory(run, first=position, last=position)
    page.locator("section[aria-labelledby=path-title] > .loads > details summary").click()
    shown = table(page, "The path, state by state")
    assert shown == [
        [state, *map(number32, point)] for state, point in zip(path.states, path.points[:, 0].tolist(), strict=True)
    ]
    for label, found, said in (
        ("How far each step goes", step_lengths(run), number32),
        ("Its angle to the step before", angles(run), lambda value: f"{number32(value, 0)}°"),
    ):
        figure = page.locator("figure", has_text=label)
        figure.locator("summary").click()
        figure.locator("li").first.wait_for()
        values = [line.split(": ")[-1] for line in figure.locator("li").all_inner_texts()]
        assert values == [said(value) for value in found.values[:, position].tolist()]


def number32(value: float, digits: int = 3) -> str:
    """A number as the page writes it after it was sent in 32 bits."""
    return number(torch.tensor(value, dtype=torch.float32).item(), digits)


def test_a_cell_is_chosen_by_keys_and_by_a_click(page, url, made):
    look(page, url, "gpt2")
    canvas = page.locator("[data-map] canvas")
    canvas.press("ArrowDown")
    canvas.press("ArrowRight")
    settled(page)
    check_cell(page, traced(made["gpt2"]), 2, POSITION + 1)
    box = canvas.bounding_box()
    assert box is not None
    canvas.click(position={"x": 62 * 5 + 10, "y": box["height"] - 5})
    settled(page)
    check_cell(page, traced(made["gpt2"]), 4, 5)
    expect(page.get_by_role("group", name=re.compile("tokens")).locator("[aria-pressed=true]")).to_have_attribute(
        "title", "position 5"
    )


def test_every_sublayer_can_be_a_row_and_measures_can_be_chosen(page, url, made):
    look(page, url, "gpt2")
    run = traced(made["gpt2"])
    view = page.locator("#view")
    view.get_by_role("combobox", name="rows").select_option("every")
    settled(page)
    shown = on_map(page)
    assert [state for state, position in shown if position == 0] == state_sites(run.transformer)
    canvas = page.locator("[data-map] canvas")
    for measure, words in (
        ("top", "top token of the lens"),
        ("entropy", "entropy of the lens"),
        ("norm", "length of the state"),
        ("change", "how far the last step went"),
    ):
        view.get_by_role("combobox", name="colour by").select_option(measure)
        expect(canvas).to_have_attribute("aria-label", re.compile(f"at 5 depths, coloured by {words}"))
        assert len(on_map(page)) == (4 if measure == "change" else 5) * len(run.columns())
    view.get_by_role("combobox", name="colour by").select_option("norm")
    norms = torch.stack([state[0].double().norm(dim=-1) for state in run.states])
    expect(page.locator(".legend")).to_contain_text(f"{number(float(norms.min()), 1)}")


def tiles(seen) -> list[tuple[str, str]]:
    """The first and last tokens of the tiles that were asked for."""
    return [found for asked in seen.requests for found in re.findall(r"/depths\?first=(\d+).*&last=(\d+)&", asked)]


def test_a_long_text_is_read_tile_by_tile(page, url, made, seen):
    assert len(LONG) > 64
    look(page, url, "gpt2", text=LONG, position=2)
    assert tiles(seen) == [("0", "63")]
    assert max(position for _, position in on_map(page)) == 63
    page.get_by_role("button", name="later positions").click()
    settled(page)
    expect(page.get_by_text(f"positions 64–{len(LONG) - 1} of {len(LONG)}")).to_be_visible()
    assert {position for _, position in on_map(page)} == set(range(64, len(LONG)))
    assert tiles(seen) == [("0", "63"), ("64", str(len(LONG) - 1))]
    page.get_by_label("words in the cells").uncheck()
    settled(page)
    assert len(on_map(page)) == 3 * len(LONG)
    assert len(tiles(seen)) == 2
    page.get_by_label("words in the cells").check()
    page.get_by_role("group", name=re.compile("tokens")).locator("button").nth(5).click()
    expect(page.get_by_text(f"positions 0–63 of {len(LONG)}")).to_be_visible()


def test_each_depth_and_the_models_own_ledger(page, url, made):
    look(page, url, "llama", token=7)
    run = traced(made["llama"])
    page.locator("summary", has_text="Each depth").click()
    settled(page)
    lens = run.lens(7, position=POSITION)
    shown = table(page, "what each depth would say")
    assert shown == [
        [row[1], row[2], percent(row[3]), percent(row[4]), number(row[5]), number(row[6]), number(row[7])]
        for row in lens
    ]
    page.locator("summary", has_text="Who wrote").click()
    settled(page)
    panel = page.locator("details", has=page.locator("summary", has_text="Who wrote"))
    panel.get_by_role("combobox", name="by").select_option("head")
    other = int(run.top(1, position=POSITION).column("id")[0])
    panel.get_by_role("combobox", name="minus").select_option(str(other))
    settled(page)
    expected = run.ledger(7, minus=other, by="head", position=POSITION)
    value = float(panel.locator(".ledger [data-value]").get_attribute("data-value"))
    assert value == pytest.approx(expected.value)
    rows = (
        panel.get_by_role("table")
        .locator("tr")
        .evaluate_all("all => all.map((row) => [row.children[0].innerText.trim(), row.children[2].innerText.trim()])")
    )
    assert rows == [[name, signed(amount)] for name, amount in expected.top(12).rows]


def test_an_edit_moves_the_map_and_the_run_before_can_be_shown(page, url, made):
    edit = zero("0.attention.update")
    look(page, url, "gpt2", [edit])
    after, before = traced(made["gpt2"], edit), traced(made["gpt2"])
    check_map(page, after)
    page.get_by_role("combobox", name=re.compile("compare", re.IGNORECASE)).select_option("before")
    settled(page)
    logits = at_state(before, STATE, POSITION)
    column = page.locator("[data-cell] tr[data-id]").first.locator("td").nth(2)
    id = int(page.locator("[data-cell] tr[data-id]").first.get_attribute("data-id"))
    expect(column).to_have_text(percent(float(logits.softmax(-1)[id])))
    page.get_by_label("show before the edits").check()
    settled(page)
    check_map(page, before)


def test_one_sentence_says_where_the_lens_settles(page, url, made):
    look(page, url, "gpt2")
    run = traced(made["gpt2"])
    tops = [int(at_state(run, index, POSITION).argmax()) for index in (0, 2, 4)]
    said = page.locator("#view .look").inner_text()
    final = made_label(run, tops[-1])
    assert final in said
    if tops[1] != tops[2]:
        assert f"no depth says {final} before the last one does" in said
    elif tops[0] != tops[2]:
        assert f"the lens says {final} from 1.stream on" in said
    else:
        assert f"every depth says {final}" in said


@pytest.mark.parametrize("width", [800, 1280])
def test_nothing_leaves_the_page_sideways(new_page, url, width):
    page = new_page(viewport={"width": width, "height": 800})
    look(page, url, "gpt2", text=LONG, position=60)
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    mark = page.locator("[data-map] .mark.chosen").bounding_box()
    frame = page.locator("[data-map] .scrolls").first.bounding_box()
    assert mark is not None
    assert frame is not None
    assert frame["x"] <= mark["x"] <= mark["x"] + mark["width"] <= frame["x"] + frame["width"] + 1

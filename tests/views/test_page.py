"""One file of the page: what is in it is text wherever it came from, and the browser may load nothing for it."""

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile import HOSTILE
from pellucid.views import View, bars, page
from pellucid.views.packed import Packed
from pellucid.views.packing import pack
from pellucid.views.page import PageMissingError, framed, one_file, pictured, script_json

INDEX = """<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8" />
    <title>Pellucid</title>
    <script type="module" crossorigin src="./page.js"></script>
    <link rel="stylesheet" crossorigin href="./page.css">
  </head>
  <body><div id="page"></div></body>
</html>
"""
SCRIPT = "const a = `</div><!-- x -->`, b = \"</script>\", c = 'ä';\n"


class Elements(HTMLParser):
    """The elements of a page in order, with their attributes, and the text of scripts and titles."""

    def __init__(self, html: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.found:
            self.texts[self.found[-1][0]] = self.texts.get(self.found[-1][0], "") + data

    def names(self) -> list[str]:
        return [tag for tag, _ in self.found]


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """A compiled page of three lines."""
    monkeypatch.setattr(page, "COMPILED", tmp_path)
    (tmp_path / "index.html").write_text(INDEX)
    (tmp_path / "page.js").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "page.css").write_text("p { background: url('data:image/svg+xml,<svg></svg>') }")
    return tmp_path


def saved_in(html: str) -> dict:
    """The data in a file, cut out as a browser would: up to the first end tag."""
    start = html.index('id="pellucid-saved">') + len('id="pellucid-saved">')
    return json.loads(html[start : html.lower().index("</script", start)])


def test_a_file_holds_the_page_its_state_and_its_answers(compiled):
    packed = Packed({"n": 1}, (pack("x", np.arange(12.0).reshape(3, 4), "float32"),))
    html = one_file({"view": "heads"}, {"traces/a/next?k=5": {"rows": [1]}, "traces/a/x": packed}, "t")
    saved = saved_in(html)
    assert saved["state"] == {"view": "heads"}
    assert saved["responses"]["traces/a/next?k=5"] == {"json": {"rows": [1]}}
    assert zlib.decompress(base64.b64decode(saved["responses"]["traces/a/x"]["packed"])) == packed.to_bytes()
    assert "src=" not in html
    assert "href=" not in html


def test_no_script_may_run_but_the_pages_and_nothing_may_be_loaded(compiled):
    html = one_file({}, {}, "t")
    script = re.search(r'<script type="module">(.*?)</script>', html, re.DOTALL)
    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', html)
    assert script
    assert policy
    assert script[1] == SCRIPT.replace("</", r"<\/").replace("<!--", r"\x3c!--")
    known = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    assert rules == {
        "default-src": "'none'",
        "script-src": f"'sha256-{known}'",
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert html.index("Content-Security-Policy") < html.index("<script")
    assert "<svg><\\/svg>" in html


@pytest.mark.parametrize("text", HOSTILE)
def test_vis_1_no_text_ends_its_place_in_a_file(text, compiled):
    html = one_file({"text": text}, {text: {text: [text]}}, text)
    plain = one_file({"text": "x"}, {"x": {"x": ["x"]}}, "x")
    assert Elements(html).names() == Elements(plain).names()
    assert saved_in(html) == {"state": {"text": text}, "responses": {text: {"json": {text: [text]}}}}
    assert Elements(html).texts["title"].startswith(text)


@given(st.recursive(st.text() | st.floats(allow_nan=False, allow_infinity=False), st.lists))
def test_data_in_an_element_comes_back_and_holds_no_sign_of_html(data):
    text = script_json(data)
    assert json.loads(text) == data
    assert not set("<>&\u2028\u2029") & set(text)
    assert text.isascii()


def test_what_json_cannot_say_is_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_json({"x": float("nan")})


def test_a_page_that_was_not_compiled_is_said(compiled):
    (compiled / "page.js").unlink()
    with pytest.raises(PageMissingError, match=r"page\.js is missing\): `make page` in a checkout does it"):
        one_file({}, {}, "t")


@pytest.mark.parametrize("text", HOSTILE)
def test_vis_1_a_frame_holds_its_page_as_text(text):
    ((tag, attributes),) = Elements(framed(f"<p>{text}</p>", text)).found
    assert tag == "iframe"
    assert attributes["srcdoc"] == f"<p>{text}</p>"
    assert attributes["title"] == text
    assert attributes["sandbox"] == "allow-scripts allow-downloads"


@pytest.mark.parametrize("text", HOSTILE)
def test_vis_1_a_pictures_page_holds_one_picture(text):
    found = Elements(pictured(b"<svg/>", text)).found
    assert [tag for tag, _ in found] == ["html", "head", "meta", "meta", "meta", "title", "style", "body", "img"]
    assert found[-1][1]["alt"] == text
    assert base64.b64decode((found[-1][1]["src"] or "").removeprefix("data:image/svg+xml;base64,")) == b"<svg/>"


def test_a_view_of_a_figure_alone_is_saved_as_its_picture(tmp_path):
    view = bars(["<b>"], [1.0], "a & b", "nats")
    html = view.save(tmp_path / "x.html").read_text()
    image = Elements(html).found[-1][1]
    assert base64.b64decode((image["src"] or "").partition(",")[2]).startswith(b"<?xml")
    assert view._repr_html_() is None
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]


def test_a_view_with_a_page_makes_it_once_and_draws_only_when_asked(tmp_path):
    made = []

    def html() -> str:
        made.append(1)
        return "<p>'page'"

    view = View(lambda: bars(["a"], [1.0], "t", "q").figure, "t", html)
    assert not made
    assert view.save(tmp_path / "x.html").read_text() == "<p>'page'"
    assert "srcdoc='&lt;p&gt;&#39;page&#39;'" in (view._repr_html_() or "")
    assert made == [1]
    assert view.save(tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert view.figure is view.figure


def test_a_view_shows_what_it_can(tmp_path, monkeypatch):
    def missing() -> str:
        raise PageMissingError("the page is not compiled here")

    view = View(bars(["a"], [1.0], "t", "q").figure, "t", missing)
    assert view._repr_html_() is None
    assert (view._repr_png_() or b"").startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="not compiled"):
        view.save(tmp_path / "x.html")
    alone = View(None, "t", lambda: "<p>")
    assert alone._repr_png_() is None
    with pytest.raises(ValueError, match=r"saved as \.html, got \.png"):
        alone.save(tmp_path / "x.png")
    monkeypatch.setattr("pellucid.views.view.find_spec", lambda name: None)
    assert View(lambda: 1 / 0, "t", lambda: "<p>")._repr_png_() is None
    assert list(tmp_path.iterdir()) == []

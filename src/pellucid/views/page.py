"""One HTML file that holds the compiled page and what it shows, and opens without a server or a network."""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from .packed import Packed

COMPILED = Path(__file__).parent / "compiled"
_PLACES = re.compile(
    r'(?P<head><head>)|(?P<title><title>[^<]*</title>)|(?P<style><link[^>]*rel="stylesheet"[^>]*>)'
    r"|(?P<script><script[^>]*src=[^>]*></script>)"
)


class PageMissingError(ValueError):
    """The page was not compiled where this package was installed."""


def compiled(name: str) -> str:
    """One of the compiled files: page.js, page.css or index.html. Raises PageMissingError."""
    path = COMPILED / name
    if not path.is_file():
        raise PageMissingError(f"the page is not compiled here ({path} is missing): `make page` in a checkout does it")
    return path.read_text(encoding="utf-8")


def one_file(state: Mapping[str, Any], responses: Mapping[str, dict[str, Any] | Packed], title: str) -> str:
    """The page with all that it shows in one text of HTML, which asks no network for anything, and may not.

    `state` is what it opens with, `responses` what it will ask for, by address. Raises PageMissingError, and ValueError
    for what JSON cannot say.
    """
    saved = {"state": state, "responses": {path: _held(response) for path, response in responses.items()}}
    script = _closed(compiled("page.js"))
    data = f'<script type="application/json" id="pellucid-saved">{script_json(saved)}</script>'
    places = {
        "head": f"<head>\n{_policy(script)}",
        "title": f"<title>{escape(title)}</title>",
        "style": f"<style>{_closed(compiled('page.css'))}</style>",
        "script": f'{data}\n<script type="module">{script}</script>',
    }
    page, count = _PLACES.subn(lambda found: places.pop(found.lastgroup or ""), compiled("index.html"))
    assert count == len(_PLACES.groupindex), f"the compiled page has no place for {', '.join(places)}"
    return page


def script_json(data: Any) -> str:
    """JSON that can stand in an element of HTML: no text in it can end the element, or begin another.

    Raises ValueError for what JSON cannot say: not a number, infinite.
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))  # what is not ASCII is escaped by itself
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def framed(html: str, title: str) -> str:
    """A page inside another: a frame that may run its own scripts and do nothing to the page around it."""
    return (
        '<iframe sandbox="allow-scripts allow-downloads" style="width:100%;height:720px;border:1px solid #8885;'
        f"resize:vertical\" title='{_attribute(title)}' srcdoc='{_attribute(html)}'></iframe>"
    )


def pictured(picture: bytes, title: str) -> str:
    """A page that holds one picture, an SVG, and nothing else; scripts in it, if any, do not run."""
    source = base64.b64encode(picture).decode()
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f'<style>img {{ max-width: 100% }}</style>\n</head>\n<body>\n<img alt="{escape(title)}" '
        f'src="data:image/svg+xml;base64,{source}">\n</body>\n</html>\n'
    )


def _held(response: dict[str, Any] | Packed) -> dict[str, Any]:
    if not isinstance(response, Packed):
        return {"json": response}
    return {"packed": base64.b64encode(_deflated(response.to_bytes())).decode()}


def _deflated(data: bytes) -> bytes:
    """The shorter of two ways: numbers without repetitions are best left to Huffman's codes alone."""
    ways = (zlib.compressobj(strategy=strategy) for strategy in (zlib.Z_DEFAULT_STRATEGY, zlib.Z_HUFFMAN_ONLY))
    return min((way.compress(data) + way.flush() for way in ways), key=len)


def _closed(code: str) -> str:
    """A script or a style sheet as it can stand in its element. The two signs stand in strings alone, if anywhere."""
    return code.replace("</", r"<\/").replace("<!--", r"\x3c!--")


def _policy(script: str) -> str:
    """Nothing may be loaded from anywhere, and no script may run but this one."""
    known = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = f"default-src 'none'; script-src 'sha256-{known}'; style-src 'unsafe-inline'; img-src data: blob:"
    return f"<meta http-equiv=\"Content-Security-Policy\" content=\"{rules}; base-uri 'none'; form-action 'none'\">"


def _attribute(text: str) -> str:
    """A text inside single quotes: compiled scripts hold more of the double ones."""
    return escape(text, quote=False).replace("'", "&#39;")

"""Models of every form for the tests of views, and the way to one view of a run."""

import base64
import json
from collections.abc import Sequence
from typing import Any

from playwright.sync_api import Page

from explorer.letters import letters
from pellucid.front import Model
from pellucid.inside.edits import Edit
from pellucid.inside.trace import Trace
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
from tiny import build, with_encoder

SIZES = {"vocab_size": 50, "context_length": 96, "n_layers": 2, "d_model": 24, "n_heads": 4, "init": Init(0.4)}
BOTH_WAYS = {"masks": (Bidirectional(),), "block": PostNorm(), "embedding_norm": True}
CONFIGS = {
    "gpt2": Config(**SIZES),
    "llama": Config(**SIZES, n_kv_heads=2, positions=Rotary(), norm=RMSNorm(), activation=SwiGLU(), tied=False),
    "palm": Config(**SIZES, block=Parallel(1), activation=Relu()),
    "pythia": Config(**SIZES, block=Parallel(2), positions=Rotary(), tied=False),
    "post": Config(**SIZES, block=PostNorm()),
    "bert": Config(**SIZES, **BOTH_WAYS, head=MaskedLanguage()),
    "bare": Config(**SIZES, **BOTH_WAYS, head=None),
    "marian": with_encoder(Config(**SIZES)),
}
TEXT, SOURCE = "hello you", "a text"


def models() -> dict[str, Model]:
    """A tiny random model of every form, by name."""
    return {name: Model(build(config), letters(), name, start_id=1) for name, config in CONFIGS.items()}


def traced(model: Model, *edits: Edit, text: str = TEXT) -> Trace:
    """What the page traces, in Python."""
    source = SOURCE if model.transformer.encoder is not None else None
    return model.trace(text, source=source).edit(*edits)


def link(view: str, model: str, edits: Sequence[Edit] = (), text: str = TEXT, **chosen: Any) -> str:
    """What stands behind the # of an address that leads to a view of a run."""
    first = {
        "layer": 0,
        "head": 0,
        "part": "attention",
        "position": 0,
        "key": 0,
        "state": 0,
        "neuron": 0,
        "token": None,
    }
    state = {
        "model": model,
        "text": text,
        "sourceText": SOURCE,
        "edits": [edit.to_json() for edit in edits],
        "view": view,
        "chosen": first | chosen,
        "comparing": "nothing",
        "otherText": "",
        "otherModel": "",
        "ids": None,
    }
    return base64.urlsafe_b64encode(json.dumps(state).encode()).decode().rstrip("=")


def table(page: Page, label: str) -> list[list[str]]:
    """The texts of a table's body, row by row."""
    return page.locator(f"table[aria-label={json.dumps(label)}] tbody tr").evaluate_all(
        "rows => rows.map((row) => Array.from(row.children, (cell) => cell.innerText.trim()))"
    )


def number(value: Any, digits: int = 3) -> str:
    """A number as the page writes it."""
    size = abs(value)
    if value == int(value):
        text = f"{int(value):,}"
    elif size >= 1e6 or size < 1e-4:
        mantissa, power = f"{value:.2e}".split("e")
        text = f"{mantissa}e{'+' if int(power) > 0 else ''}{int(power)}"
    else:
        text = f"{value:.{1 if size >= 100 else digits if size >= 1 else 4}f}"
    return text.replace("-", "−")


def percent(share: Any) -> str:
    """A share as the page writes it."""
    if 0 < share < 0.001:
        return "< 0.1%"
    return f"{100 * share:.{1 if share < 0.0995 else 0}f}%"


def signed(value: Any) -> str:
    """A number as the page writes it with its sign."""
    return number(value) if value < 0 else f"+{number(value)}"


def tab_to(page: Page, label: str) -> None:
    """Press the tab key until what has the keyboard is called so."""
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.ariaLabel || document.activeElement.textContent").startswith(label):
            return
    raise AssertionError(f"the tab key never comes to {label!r}")

"""The list of what can be asked of a run, by name; each has an address under which a page finds it."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from ...views.packed import Packed
from ..run import Run
from .attention import attention
from .ffn import ffn
from .head_writes import head
from .next_tokens import next_tokens
from .norm import norm, norms
from .passing import pass_stages
from .patterns import pattern_plan, patterns
from .state import cell, ledger, lens, path
from .stream import depths, stream
from .tiles import site_tile, values_at

Shown = dict[str, Any] | Packed
Resource = Callable[..., Shown]

RESOURCES: dict[str, Resource] = {
    "stages": pass_stages,
    "values": values_at,
    "site": site_tile,
    "next": next_tokens,
    "stream": stream,
    "depths": depths,
    "cell": cell,
    "lens": lens,
    "ledger": ledger,
    "path": path,
    "attention": attention,
    "plan": pattern_plan,
    "patterns": patterns,
    "head": head,
    "norms": norms,
    "norm": norm,
    "ffn": ffn,
}


def address(resource: str, /, **parameters: object) -> str:
    """Where a page finds a resource: its name, and the parameters that are given, in alphabetical order."""
    given = {name: _plain(value) for name, value in sorted(parameters.items()) if value is not None}
    return quote(resource) + (f"?{urlencode(given, quote_via=quote)}" if given else "")


def answer(run: Run, resource: str, parameters: Mapping[str, Any]) -> Shown:
    """What a resource says of a run. Raises ValueError for a name or a parameter that there is not."""
    if resource not in RESOURCES:
        raise ValueError(f"a run can be asked for {', '.join(RESOURCES)}; got {resource!r}")
    function = RESOURCES[resource]
    known = list(inspect.signature(function).parameters)[1:]
    if unknown := sorted(set(parameters) - set(known)):
        raise ValueError(f"{resource} takes {', '.join(known) or 'no parameters'}; got {', '.join(unknown)}")
    return function(run, **parameters)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

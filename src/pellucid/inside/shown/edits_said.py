"""An edit in words, and as the line of Python that makes it again."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from ..edits import Edit

_WHERE = {"heads": "head", "kv_heads": "kv_head", "neurons": "neuron", "positions": "position", "keys": "key"}
_MADE_WITH = {  # the fields that each function of an edit can say, beside those of _WHERE
    "zero": (),
    "set": ("value",),
    "add": ("value",),
    "scale": ("factor",),
    "noise": ("factor", "seed"),
    "knockout": (),
}
_VERBS = {"add": "add to", "noise": "noise on", "knockout": "hide keys in"}  # kinds whose name is no verb
_PLACES = {"heads": "head", "kv_heads": "key-value head", "neurons": "neuron", "positions": "position", "keys": "key"}


def edit_said(edit: Edit) -> dict[str, Any]:
    """{"json", "python", "says"}; of a free function, which is no data, "json" is None and the Python has a gap."""
    if edit.function is not None:
        return {"json": None, "python": f"pl.map({edit.site!r}, ...)", "says": f"a function of {edit.site}"}
    return {"json": edit.to_json(), "python": edit_as_python(edit), "says": edit_in_words(edit)}


def edit_as_python(edit: Edit) -> str:
    """A line that makes an equal edit, `pl` being this package. Raises EditError for a free function.

    The value is written out in full. What no function of an edit can say is written as data.
    """
    data = edit.to_json()
    known = _MADE_WITH.get(edit.kind, ())
    given = {each.name for each in fields(Edit) if each.name in data and data[each.name] != each.default}
    sayable = given <= {"kind", "site", *_WHERE, *known} and {*known} & {"value"} <= given
    if edit.kind not in _MADE_WITH or not sayable or (edit.kind == "knockout" and not edit.site.endswith(".scores")):
        return f"pl.Edit.from_json({_literal({name: data[name] for name in data if name in given})})"
    said = [repr(edit.site)]
    if "value" in known:
        said.append(_tensor(data["value"]))
    if "factor" in known:
        said.append(_literal(edit.factor))
    if "seed" in known and edit.seed:
        said.append(f"seed={edit.seed}")
    said += [f"{name}={_choice(data[field])}" for field, name in _WHERE.items() if field in data]
    return f"pl.{edit.kind}({', '.join(said)})"


def edit_in_words(edit: Edit) -> str:
    """What an edit does, short: "scale 3.attention.scores by 8, head 2"."""
    what = f"{_VERBS.get(edit.kind, edit.kind)} {edit.site}"
    if edit.value is not None:
        joint = ":" if edit.kind == "add" else " to"
        size = f"{edit.value.numel():,} numbers" if edit.value.numel() != 1 else f"{edit.value.double().item():g}"
        what += f"{joint} {size}"
    if edit.kind == "scale":
        what += f" by {edit.factor:g}"
    if edit.kind == "noise":
        what += f", std {edit.factor:g}, seed {edit.seed}"
    places = _PLACES | ({"at": "position"} if edit.positions is None else {})
    for field, name in places.items():
        choice = vars(edit)[field]
        if choice is not None:
            what += f", {name}{'s' if len(choice) != 1 else ''} {_ranged(choice)}"
    return what


def _ranged(choice: tuple[int, ...]) -> str:
    """Numbers as a person lists them: 0-4 for neighbours, the first few of many."""
    if not choice:
        return "none"
    if len(choice) > 2 and choice == tuple(range(choice[0], choice[0] + len(choice))):
        return f"{choice[0]}-{choice[-1]}"
    return ", ".join(map(str, choice[:6])) + (f" and {len(choice) - 6} more" if len(choice) > 6 else "")


def _choice(choice: tuple[int, ...] | list[int]) -> str:
    return str(choice[0]) if len(choice) == 1 else str(list(choice))


def _tensor(value: float | list[Any]) -> str:
    """A value as an argument: a number that fp32 holds by itself, since a bare number becomes one of that."""
    if not isinstance(value, list) and (math.isinf(value) or float(torch.tensor(value)) == value):
        return _literal(value)
    return f"torch.tensor({_literal(value)}, dtype=torch.float64)"


def _literal(value: object) -> str:
    """Plain data as Python reads it; infinities too, which have no literal."""
    if isinstance(value, float) and math.isinf(value):
        return f'float("{value}")'
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name!r}: {_literal(each)}" for name, each in value.items()) + "}"
    return repr(value)

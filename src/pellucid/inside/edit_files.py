"""Edits as a file: edits.json beside a model's weights, or anywhere. Nothing is believed before it was checked."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .edits import KINDS, Edit
from .errors import EditError
from .put import put

FILE = "edits.json"
SCHEMA = "pellucid edits 1"
MOST_BYTES = 256_000_000
MOST_EDITS = 10_000
_MOST_PLACES = 10_000_000  # what a place or a head may be numbered
_CHOICES = ("heads", "kv_heads", "neurons", "positions", "keys", "at")
_DEEPEST = 4  # axes of a value: position, head, query or key, width


def edits_as_bytes(edits: Sequence[Edit]) -> bytes:
    """The file's contents. Raises EditError for a free function, which has no such form, and for numbers like NaN."""
    data = {"schema": SCHEMA, "edits": [edit.to_json() for edit in edits]}
    try:
        return json.dumps(data, allow_nan=False).encode() + b"\n"
    except ValueError as error:
        raise EditError(f"edits with numbers that are not finite cannot be written: {error}") from error


def write_edits(path: str | os.PathLike[str], edits: Sequence[Edit]) -> None:
    """Write edits to a file; whoever reads it meanwhile sees the old one or the whole new one. Raises EditError."""
    put(path, edits_as_bytes(edits))


def read_edits(path: str | os.PathLike[str]) -> tuple[Edit, ...]:
    """The edits of a file, in their order. Raises EditError for anything else, before any of it is used.

    Whether a model has what they name is checked when it is edited.
    """
    path = Path(path)
    if not path.is_file():
        raise EditError(f"{path}: expected a file of edits, found {'a folder' if path.is_dir() else 'nothing there'}")
    if path.stat().st_size > MOST_BYTES:
        raise EditError(f"{path}: expected at most {MOST_BYTES:,} bytes of edits, got {path.stat().st_size:,}")
    try:
        data = json.loads(path.read_bytes().decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise EditError(f"{path}: expected JSON, got something else ({error})") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or set(data) != {"schema", "edits"}:
        raise EditError(f"{path}: expected {{'schema': {SCHEMA!r}, 'edits': [...]}}: write it with write_edits")
    edits = data["edits"]
    if not isinstance(edits, list) or len(edits) > MOST_EDITS:
        raise EditError(f"{path}: edits must be a list of at most {MOST_EDITS}")
    return tuple(edit_from(each, f"{path}: edit {number}") for number, each in enumerate(edits))


def edit_from(data: object, where: str) -> Edit:
    """One edit from its plain data, checked in its types and sizes. Raises EditError that begins with `where`."""
    if not isinstance(data, dict):
        raise EditError(f"{where}: expected an object, got {str(data)[:60]!r}")
    fault = _fault(data)
    if fault:
        raise EditError(f"{where}: {fault}")
    try:
        return Edit.from_json(data)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:  # a ragged value makes no tensor
        raise EditError(f"{where}: {str(error)[:200]}") from error


def _fault(data: Mapping[str, Any]) -> str:
    """What is wrong with an edit's fields, in their types and sizes; "" for nothing."""
    if data.get("kind") not in KINDS:
        return f"kind must be one of {', '.join(KINDS)}, got {str(data.get('kind'))[:60]!r}"
    if not isinstance(data.get("site"), str) or len(data["site"]) > 200:
        return f"site must be a site's name, got {str(data.get('site'))[:60]!r}"
    for name in _CHOICES:
        choice = data.get(name, [])
        if not isinstance(choice, list) or not all(type(each) is int and 0 <= each < _MOST_PLACES for each in choice):
            return f"{name} must be whole numbers from 0, got {str(choice)[:60]!r}"
    if data["kind"] in ("set", "add") and "value" not in data:
        return f"an edit of the kind {data['kind']} needs a value"
    at = data.get("at", [])
    if "at" in data and ("value" not in data or not at or at != list(range(at[0], at[0] + len(at)))):
        return "at must be the neighbouring positions that value has one for each"
    if "value" in data and not _are_numbers(data["value"], _DEEPEST):
        return "value must be a finite number, or lists of them"
    if type(data.get("seed", 0)) is not int or any(
        type(data.get(name, False)) is not bool for name in ("whole", "full")
    ):
        return "seed must be a whole number, whole and full true or false"
    return "" if _are_numbers(data.get("factor", 1.0), 0) else "factor must be a finite number"


def _are_numbers(value: object, depth: int) -> bool:
    if isinstance(value, list):
        return depth > 0 and len(value) > 0 and all(_are_numbers(each, depth - 1) for each in value)
    return isinstance(value, int | float) and type(value) is not bool and abs(value) <= 1e300 and math.isfinite(value)


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")

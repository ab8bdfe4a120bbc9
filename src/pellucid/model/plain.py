"""Records to plain data (what JSON and TOML can hold) and back."""

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

_T = TypeVar("_T")


def to_plain(value: Any) -> Any:
    """A record as {"kind": its name, ...its fields}, a tuple as a list, anything else as it is."""
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    if not is_dataclass(value):
        return value
    return {"kind": type(value).__name__, **{name: to_plain(part) for name, part in vars(value).items()}}


def from_plain(record: type[_T], data: Mapping[str, Any], where: str) -> _T:
    """A record from its plain data; fields left out take their defaults.

    Raises ValueError that says where, for a field or kind that there is not, a missing field, or a value of another
    type.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{where} must be a mapping of {record.__name__}'s fields, got {data!r}")
    known: dict[str, Field[Any]] = {field.name: field for field in fields(record)}  # pyright: ignore[reportArgumentType]
    for name in data:
        if name != "kind" and name not in known:
            near = get_close_matches(name, known, 1) or known
            raise ValueError(f"{where} has no field {name!r}; {record.__name__} has {', '.join(near)}")
    for name, field in known.items():
        if name not in data and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{where} lacks {name}, which {record.__name__} needs")
    hints = typing.get_type_hints(record)
    values = {name: _value(hints[name], data[name], f"{where}.{name}") for name in known if name in data}
    return record(**values)


def _value(hint: Any, value: Any, where: str) -> Any:
    """A field's value, checked against its annotation."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) or _is_union(hint) else (hint,)
    records: dict[str, Any] = {_named(option): option for option in options if is_dataclass(option)}
    if value is None and type(None) in options:
        return None
    if records and isinstance(value, Mapping):
        kind = value.get("kind", next(iter(records)) if len(records) == 1 else None)
        if not isinstance(kind, str) or kind not in records:
            raise ValueError(f"{where} must name its kind, one of {', '.join(records)}, got {kind!r}")
        return from_plain(records[kind], value, where)
    for option in options:
        if typing.get_origin(option) is tuple and isinstance(value, list | tuple):
            item = typing.get_args(option)[0]
            return tuple(_value(item, one, f"{where}[{i}]") for i, one in enumerate(value))
        if option is float and _fits(float, value):
            return float(typing.cast(float, value))
        if typing.get_origin(option) is typing.Literal or _fits(option, value):
            return value
    names = ", ".join(records) or " or ".join(_named(option) for option in options)
    raise ValueError(f"{where} must be {names}, got {value!r}")


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Union


def _fits(option: Any, value: Any) -> bool:
    if not isinstance(option, type) or is_dataclass(option):
        return False
    if isinstance(value, bool):
        return option is bool
    return isinstance(value, (int, float) if option is float else option)


def _named(option: Any) -> str:
    return option.__name__ if isinstance(option, type) else str(option)

"""Reading a checkpoint's settings field by field, so that no field is dropped unread."""

import sys
from collections.abc import Mapping
from typing import Any

from .errors import CheckpointError
from .files import shorter, shown

MOST_LAYERS = 10_000  # ten times the deepest in print (DeepNet, 2022); lists with an item for each stay short
_MOST = 2**31 - 1  # no size or length in use comes near it, and a product of two still fits 64 bits
_LISTED = 20  # fields in one message
_WHOLE, _NUMBER, _FLAG, _TEXT, _NUMBERS = "a whole number", "a number", "true or false", "a text", "a list of numbers"


class Fields:
    """The fields of one mapping, taken out one by one; `close` refuses whatever nobody took.

    A field that is null counts as absent. `where` names the mapping in messages.
    """

    def __init__(self, values: Mapping[str, Any], where: str):
        self.where = where
        self._left = dict(values)

    def __contains__(self, name: str) -> bool:
        return self._left.get(name) is not None

    def whole(self, name: str, default: int | None = None, least: int = 0, most: int = _MOST) -> int:
        """An int from `least` to `most`; without a default, which may be any, the field must be there."""
        stated = name in self
        value = self._take(name, _WHOLE, default)
        if stated and value < least:
            raise self.error(f"{name} must be at least {least}, got {shown([value])}")
        if stated and value > most:
            raise self.error(f"{name} must be at most {most}, got {shown([value])}")
        return value

    def size(self, name: str, default: int | None = None) -> int:
        """An int of at least 1."""
        return self.whole(name, default, least=1)

    def layers(self, name: str, default: int | None = None) -> int:
        """A number of layers, checked before anything is made for each of them."""
        return self.whole(name, default, least=1, most=MOST_LAYERS)

    def number(self, name: str, default: float | None = None) -> float:
        """A float; whole numbers are taken too."""
        return float(self._take(name, _NUMBER, default))

    def flag(self, name: str, default: bool) -> bool:
        """A bool."""
        return self._take(name, _FLAG, default)

    def text(self, name: str, default: str | None = None) -> str:
        """A str; without a default the field must be there."""
        return self._take(name, _TEXT, default)

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of numbers that must be there."""
        return tuple(float(number) for number in self._take(name, _NUMBERS, None))

    def some(self, name: str) -> float | None:
        """A number, or None where the field is absent."""
        return self.number(name) if name in self else self.ignore(name)

    def inner(self, name: str) -> "Fields | None":
        """The fields of a nested mapping, or None where it is absent."""
        value = self._left.pop(name, None)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(f"{name} must be a mapping, got {shown([value])}")
        return Fields(value, f"{name} of {self.where}")

    def only(self, name: str, *accepted: object) -> None:
        """Take a field that would change the numbers in an unsupported way unless it has one of these values."""
        value = self._left.pop(name, None)
        if value is not None and value not in accepted:
            told = " or ".join(shown([one]) for one in accepted) or "null"
            raise self.error(f"{name}={shown([value])} is not supported, only {told}")

    def ignore(self, *names: str) -> None:
        """Take fields that cannot change the logits."""
        for name in names:
            self._left.pop(name, None)

    def collect(self, *names: str) -> dict[str, Any]:
        """Take those of these fields that are there, as they are."""
        return {name: self._left.pop(name) for name in names if name in self._left}

    def error(self, message: str) -> CheckpointError:
        """An error that says where it stands."""
        return CheckpointError(f"{self.where}: {message}")

    def close(self) -> None:
        """Refuse the fields that nobody took: ignoring one could silently change what the model computes."""
        if self._left:
            listed = [f"{shorter(name)}={shown([value])}" for name, value in sorted(self._left.items())]
            more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
            raise self.error(f"unknown fields that might change the model: {', '.join(listed[:_LISTED])}{more}")

    def _take(self, name: str, kind: str, default: Any) -> Any:
        value = self._left.pop(name, None)
        if value is None:
            if default is None:
                raise self.error(f"{name} is missing, expected {kind}")
            return default
        if not _is(kind, value):
            raise self.error(f"{name} must be {kind}, got {shown([value])}")
        return value


def _is(kind: str, value: object) -> bool:
    if kind == _NUMBERS:
        return isinstance(value, list) and bool(value) and all(_is(_NUMBER, one) for one in value)
    if kind == _FLAG or isinstance(value, bool):
        return kind == _FLAG and isinstance(value, bool)
    if kind == _NUMBER:
        return isinstance(value, int | float) and abs(value) <= sys.float_info.max  # neither infinite nor NaN
    return isinstance(value, {_WHOLE: int, _TEXT: str}[kind])

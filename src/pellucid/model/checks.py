"""Checks of a record's numbers, with messages for people."""


def positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be above 0{'' if value <= 0 else ' and finite'}, got {value}")


def whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def at_least(name: str, value: float, least: float) -> None:
    if not least <= value < float("inf"):
        raise ValueError(f"{name} must be at least {least}{'' if value < least else ' and finite'}, got {value}")


def one_of(name: str, value: object, accepted: tuple[object, ...]) -> None:
    if value not in accepted:
        raise ValueError(f"{name} must be {' or '.join(map(repr, accepted))}, got {value!r}")

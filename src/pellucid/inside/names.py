"""Finding sites by name: exact, by `*`, by a range of layers, and what was probably meant."""

import re
from collections.abc import Sequence
from difflib import get_close_matches

from .elsewhere import ours
from .errors import SiteError

_RANGE = re.compile(r"((?:encoder\.|decoder\.)?)(\d+)-(\d+)(\..+)")
_LAYER = re.compile(r"(encoder\.|decoder\.|)(\d+)\.")


def check_name(name: str, known: Sequence[str]) -> str:
    """The name itself, if it is a site's; otherwise a SiteError that suggests the nearest."""
    if name in known:
        return name
    if "*" in name or _RANGE.fullmatch(name):
        raise SiteError(f"{name!r} is a pattern, one site's name was expected: read(pattern) reads several")
    raise SiteError(f"there is no site {name!r}{_nearest(name, known)}")


def select(pattern: str, known: Sequence[str]) -> list[str]:
    """The sites that a pattern names, in the order of the data flow.

    `*` alone names every site; within a name it stands for one part of it ("*.attention.pattern"), and `3-5.` for the
    layers 3, 4 and 5. Raises SiteError when nothing fits.
    """
    if pattern == "*":
        return list(known)
    layers, rest = None, pattern
    if ranged := _RANGE.fullmatch(pattern):
        layers, rest = range(int(ranged[2]), int(ranged[3]) + 1), f"{ranged[1]}*{ranged[4]}"
    form = re.compile("[^.]+".join(re.escape(part) for part in rest.split("*")))
    found = [name for name in known if form.fullmatch(name)]
    if layers is not None:
        found = [name for name in found if layer_of(name) in layers]
    if not found:
        raise SiteError(f"no site fits {pattern!r}{_nearest(pattern, known)}")
    return found


def layer_of(name: str) -> int | None:
    """The layer in a site's name, if it has one; the last stream counts as a layer of its own."""
    found = _LAYER.match(name)
    return int(found[2]) if found else None


def _nearest(name: str, known: Sequence[str]) -> str:
    """A hint: the nearest names, a layer out of range being read as one that exists, or what they are called here."""
    if own := ours(name, known):
        return f": TransformerLens's name for {own!r}"
    if at := _LAYER.match(name):
        side = at[1]
        numbers = [int(found[2]) for site in known if (found := _LAYER.match(site)) and found[1] == side]
        if numbers and int(at[2]) >= max(numbers):  # the number after the last layer's is that of its output
            return f": the last layer is {max(numbers) - 1} (its output is {side}{max(numbers)}.stream)"
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else "; model.sites() lists them"

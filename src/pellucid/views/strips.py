"""Numbers drawn with block characters, one line each."""

import math
from collections.abc import Iterable

_RIGHTWARD = " ▏▎▍▌▋▊▉█"  # a cell filled from the left, in eighths
_LEFTWARD = " ▐█"  # filled from the right: Unicode has only the half
_LEVELS = "▁▂▃▄▅▆▇█"


def bar(value: float, scale: float, width: int, *, signed: bool = True) -> str:
    """A bar of exactly `width` characters, full at +-`scale`; what is beyond the scale is drawn full.

    Signed bars grow from an axis in the middle, negative values leftwards (in half characters, positive ones in
    eighths); an even width leaves the last character blank. Unsigned bars grow from the left edge and show negative
    values as nothing. NaN is drawn as "?". Raises ValueError for a negative scale or a width too small to draw in.
    """
    _check(width, 3 if signed else 1)
    if not scale >= 0:
        raise ValueError(f"a bar's scale must be 0 or more, got {scale}")
    if not signed:
        return "?".ljust(width) if math.isnan(value) else _fill(_share(value, scale), width)
    half = (width - 1) // 2
    if math.isnan(value):
        return (" " * half + "?").ljust(width)
    share = _share(value, scale)
    return f"{_fill_back(-share, half)}│{_fill(share, half)}".ljust(width)


def strip(values: Iterable[float], width: int) -> str:
    """A vector as a row of at most `width` block heights.

    A longer vector is cut into `width` near-equal runs, each drawn as its value of largest magnitude, so that no
    outlier is lost. With negative values the scale is -m..m (m the largest magnitude; zero lies at half height),
    without them 0..m. NaN is drawn "?"; infinities are drawn at the ends of the scale and do not stretch it.
    """
    _check(width, 1)
    numbers = [float(value) for value in values]
    runs = min(width, len(numbers))
    shown = [_extreme(numbers[i * len(numbers) // runs : (i + 1) * len(numbers) // runs]) for i in range(runs)]
    top = max((abs(value) for value in shown if math.isfinite(value)), default=0.0)
    low = -1.0 if any(value < 0 for value in shown) else 0.0
    return "".join("?" if math.isnan(value) else _level(_share(value, top), low) for value in shown)


def _check(width: int, least: int) -> None:
    if width < least:
        raise ValueError(f"the width must be at least {least}, got {width}")


def _share(value: float, scale: float) -> float:
    """value / scale within -1..1; nothing of nothing is 0."""
    if math.isinf(value):
        return math.copysign(1.0, value)
    return max(-1.0, min(1.0, value / scale)) if scale else 0.0


def _fill(share: float, width: int) -> str:
    full, part = divmod(round(max(share, 0.0) * width * 8), 8)
    return ("█" * full + (_RIGHTWARD[part] if part else "")).ljust(width)


def _fill_back(share: float, width: int) -> str:
    full, part = divmod(round(max(share, 0.0) * width * 2), 2)
    return ((_LEFTWARD[part] if part else "") + "█" * full).rjust(width)


def _extreme(run: list[float]) -> float:
    return next((value for value in run if math.isnan(value)), max(run, key=abs))


def _level(share: float, low: float) -> str:
    return _LEVELS[min(7, int((share - low) / (1.0 - low) * 8))]

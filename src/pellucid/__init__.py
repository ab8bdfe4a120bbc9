"""Pellucid: one readable transformer, and everything inside it."""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .front import Model, load
    from .generation.sampling import Sampling
    from .inside.edits import Edit, add, freeze, knockout, mean, noise, patch, resample, scale, zero
    from .inside.edits import map_with as map
    from .inside.edits import set_to as set
    from .inside.trace import Trace
    from .model.budget import budget
    from .model.config import Config
    from .model.sites import Site
    from .weights.presets import preset
else:

    def __getattr__(name: str) -> object:
        """Import a name when it is first asked for (PEP 562), so that `import pellucid` costs nothing."""
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(_unknown(name))
        home, _, own = _HOMES[name].partition(":")
        value = getattr(import_module(home, __name__), own or name)
        globals()[name] = value
        return value


__all__ = [
    "Config", "Edit", "Model", "Sampling", "Site", "Trace", "__version__", "add", "budget", "freeze", "knockout",
    "load", "map", "mean", "noise", "patch", "preset", "resample", "scale", "set", "zero",
]  # fmt: skip

_HOMES = {
    "Config": ".model.config",
    "Edit": ".inside.edits",
    "Model": ".front",
    "Sampling": ".generation.sampling",
    "Site": ".model.sites",
    "Trace": ".inside.trace",
    "add": ".inside.edits",
    "budget": ".model.budget",
    "freeze": ".inside.edits",
    "knockout": ".inside.edits",
    "load": ".front",
    "map": ".inside.edits:map_with",
    "mean": ".inside.edits",
    "noise": ".inside.edits",
    "patch": ".inside.edits",
    "preset": ".weights.presets",
    "resample": ".inside.edits",
    "scale": ".inside.edits",
    "set": ".inside.edits:set_to",
    "zero": ".inside.edits",
}


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    nearest = get_close_matches(name, __all__, n=1)
    hint = f"Did you mean {nearest[0]!r}?" if nearest else f"It has {', '.join(__all__)}."
    return f"module {__name__!r} has no attribute {name!r}. {hint}"


def __dir__() -> list[str]:
    return sorted(__all__)

"""Pellucid: one readable transformer, and everything inside it."""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .front import Model, load
    from .generation.sampling import Sampling
    from .inside.trace import Trace
    from .model.config import Config
    from .model.sites import Site
else:

    def __getattr__(name: str) -> object:
        """Import a name when it is first asked for (PEP 562), so that `import pellucid` costs nothing."""
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(_unknown(name))
        value = getattr(import_module(_HOMES[name], __name__), name)
        globals()[name] = value
        return value


__all__ = ["Config", "Model", "Sampling", "Site", "Trace", "__version__", "load"]

_HOMES = {
    "Config": ".model.config",
    "Model": ".front",
    "Sampling": ".generation.sampling",
    "Site": ".model.sites",
    "Trace": ".inside.trace",
    "load": ".front",
}


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    nearest = get_close_matches(name, __all__, n=1)
    hint = f"Did you mean {nearest[0]!r}?" if nearest else f"It has {', '.join(__all__)}."
    return f"module {__name__!r} has no attribute {name!r}. {hint}"


def __dir__() -> list[str]:
    return sorted(__all__)

"""The shape that a name stands for: a preset's, or a model's own."""

from difflib import get_close_matches
from typing import TYPE_CHECKING

from .talk import waiting

if TYPE_CHECKING:
    from ..model.config import Config


def shape(name: str) -> "Config":
    """The config of a preset, or of anything that can be loaded; without allocating its weights.

    Raises ValueError with the nearest names for one that is like a preset's or a known model's and is neither.
    """
    with waiting(f"reading {name}"):
        from ..weights.known import KNOWN, on_disk
        from ..weights.loading import load_checkpoint
        from ..weights.presets import PRESETS

        if name in PRESETS:
            return PRESETS[name]
        if name not in KNOWN and "/" not in name and on_disk(name) is None:
            near = get_close_matches(name, dict.fromkeys([*PRESETS, *KNOWN]), n=5)
            if near:
                raise ValueError(f"no preset or model {name!r}; the nearest are {', '.join(near)}")
        return load_checkpoint(name, device="meta").config

"""The shape that a name stands for: a preset's, or a model's own."""

from typing import TYPE_CHECKING

from .talk import waiting

if TYPE_CHECKING:
    from ..model.config import Config


def shape(name: str) -> "Config":
    """The config of a preset, or of anything that can be loaded; without allocating its weights."""
    with waiting(f"reading {name}"):
        from ..weights.loading import load_checkpoint
        from ..weights.presets import PRESETS

        return PRESETS[name] if name in PRESETS else load_checkpoint(name, device="meta").config

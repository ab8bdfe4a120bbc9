"""Published shapes by name, for models that start from random weights."""

import difflib

from ..model.config import Config, Dropout


def _gpt2(n_layers: int, d_model: int, n_heads: int) -> Config:
    rates = Dropout(embedding=0.1, attention=0.1, update=0.1)
    return Config(50257, 1024, n_layers, d_model, n_heads, dropout=rates)


# Radford et al. 2019, table 2; parameters with tied embeddings
PRESETS = {
    "gpt2": _gpt2(12, 768, 12),  # 124,439,808
    "gpt2-medium": _gpt2(24, 1024, 16),  # 354,823,168
    "gpt2-large": _gpt2(36, 1280, 20),  # 774,030,080
    "gpt2-xl": _gpt2(48, 1600, 25),  # 1,557,611,200
}


def preset(name: str) -> Config:
    """The config of a published shape. Raises ValueError with the nearest names for one that is not there."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, cutoff=0.5) or list(PRESETS)
        raise ValueError(f"no preset {name!r}; the nearest are {', '.join(near)}")
    return PRESETS[name]

"""Which family's config.json can say what a Config says: written, read back and compared."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from ..model.config import Config, Dropout, Init
from .errors import CheckpointError
from .families import FAMILIES
from .family import Family

HUGGING_FACE, NATIVE = "hf", "pellucid"  # any of Hugging Face's layouts; our own


def family_for(config: Config, names: Collection[str], layout: str | None = None) -> Family:
    """The family to save a model in: the named one, or the first that can express it, our own if no other can.

    `layout` "hf" takes Hugging Face's families alone. `names` are those of our weights. Raises CheckpointError that
    says what a family has no place for.
    """
    if layout not in (None, HUGGING_FACE, *FAMILIES):
        raise CheckpointError(f"no layout {layout!r}, only {', '.join(FAMILIES)}, {HUGGING_FACE}")
    faults: dict[str, list[str]] = {}
    for name in FAMILIES if layout in (None, HUGGING_FACE) else (layout,):
        if layout == HUGGING_FACE and name == NATIVE:
            continue
        faults[name] = inexpressible(FAMILIES[name], config, names)
        if not faults[name]:
            return FAMILIES[name]
    nearest = min(faults, key=lambda name: len(faults[name]))
    which = (
        f"no layout of Hugging Face's can hold this model; the nearest, {nearest},"
        if len(faults) > 1
        else f"the {nearest} layout"
    )
    raise CheckpointError(f"{which} has no place for {'; '.join(faults[nearest])}")


def inexpressible(family: Family, config: Config, names: Collection[str]) -> list[str]:
    """What the family's config.json and table have no place for. Dropout and the start are for training and not asked.

    `names` are those of our weights.
    """
    layout = family.layout(config)
    placed, unplaced = set(), []
    for ours in names:
        try:
            placed.update(layout.of(ours)[1])
        except CheckpointError:
            unplaced.append(ours)
    try:
        back, _ = family.read_config(family.write_config(config), family.model_type)
        found = _differences(comparable(config), comparable(family.settle(back, placed)))
    except ValueError as error:
        return [str(error), *unplaced]
    return found or unplaced


def comparable(config: Config) -> Config:
    """The config with masks and scales spelled out for each layer, and nothing in it that only training reads."""
    layers = range(config.n_layers)
    return replace(
        config,
        masks=tuple(config.mask(layer) for layer in layers),
        attention_scales=tuple(config.attention_scale(layer) for layer in layers),
        dropout=Dropout(),
        init=Init(),
        encoder=config.encoder and comparable(config.encoder),
    )


def _differences(wanted: Config, back: Config, prefix: str = "") -> list[str]:
    found: list[str] = []
    for name, value in vars(wanted).items():
        other: Any = vars(back)[name]
        if isinstance(value, Config) and isinstance(other, Config):
            found += _differences(value, other, f"{prefix}{name}.")
        elif value != other:
            found.append(f"{prefix}{name}={_short(value)}")
    return found


def _short(value: Any) -> str:
    """A value, one of those that are the same in every layer."""
    return repr(value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value)

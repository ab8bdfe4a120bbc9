"""A layout of our own, for configs that no family of Hugging Face's can express: PaLM, GPT-3's bands, the 2017 form.

config.json holds the whole Config under "config", as `Config.to_dict` gives it; tensors go by our own names, as they
are. Only Pellucid reads it.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ..model.config import Config
from .errors import CheckpointError
from .family import Family
from .fields import Fields
from .files import shown
from .hf_config import take_common
from .names import ENCODER, Entry, Layout

_NAMES = (
    "embed.token.weight", "embed.position.weight", "embed.types.weight", "embed.norm",
    "blocks.{}.norm", "blocks.{}.attention.norm", "blocks.{}.attention.qkv", "blocks.{}.attention.out",
    "blocks.{}.cross.norm", "blocks.{}.cross.query", "blocks.{}.cross.kv", "blocks.{}.cross.out",
    "blocks.{}.ffn.norm", "blocks.{}.ffn.gate", "blocks.{}.ffn.up", "blocks.{}.ffn.down",
    "final_norm", "head.dense", "head.norm", "unembed", "pooler", "next_sentence",
)  # fmt: skip


def read_config(values: Mapping[str, Any], where: str) -> tuple[Config, dict[str, Any]]:
    """A config.json's fields as a Config, and those that belong to generation.

    Raises CheckpointError for a field that is not known, and for a config that cannot be.
    """
    fields = Fields(values, where)
    generation = take_common(fields, ())
    inner = fields.collect("config").get("config")
    fields.close()
    if not isinstance(inner, Mapping):
        raise fields.error(f"config must be a mapping of Config's fields, got {shown([inner])}")
    try:
        if odd := [number for number in _numbers(inner) if not math.isfinite(number)]:
            raise fields.error(f"expected finite numbers, got {shown(odd)}")
        return Config.from_dict(inner), generation
    except CheckpointError:
        raise
    # a kind that is a list cannot be looked up; a number of a thousand digits is no float; encoders may have encoders
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise fields.error(str(error)) from error


def _numbers(value: object) -> Iterator[float]:
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _numbers(item)


def write_config(config: Config) -> dict[str, Any]:
    """The fields of config.json for any Config; the inverse of `read_config`."""
    return {"config": config.to_dict()}


LAYOUT = Layout("Pellucid", tuple(Entry(name, (name,)) for name in (*_NAMES, *(ENCODER + name for name in _NAMES))))


def layout(config: Config) -> Layout:
    """The one table that there is."""
    return LAYOUT


FAMILY = Family("pellucid", (), read_config, write_config, layout)

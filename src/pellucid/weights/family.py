"""What there is to know of a family on disk: its config.json both ways, and its tables of names."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..model.config import Config
from .names import Layout


def as_read(config: Config, names: Collection[str]) -> Config:
    """The config as config.json has it: the tensors say no more."""
    return config


@dataclass(frozen=True)
class Family:
    """How a model_type of config.json is read and written.

    `read_config` takes config.json's fields and what to call them in errors, and gives the Config and what belongs to
    generation. `write_config` is its inverse for the configs that the family can express; of others it writes what it
    can, and whoever saves compares. `settle` completes a config from the plain names of the file's tensors, for
    families whose files may hold more than the architecture asks for.
    """

    model_type: str
    architectures: tuple[str, ...]
    read_config: Callable[[Mapping[str, Any], str], tuple[Config, dict[str, Any]]]
    write_config: Callable[[Config], dict[str, Any]]
    layout: Callable[[Config], Layout]
    settle: Callable[[Config, Collection[str]], Config] = as_read

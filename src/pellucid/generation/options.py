"""Settings given field by field."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from .beam import Beams
from .sampling import Sampling

Settings = TypeVar("Settings", Sampling, Beams)


def with_options(settings: Settings, options: Mapping[str, Any]) -> Settings:
    """Sampling or beams with single fields replaced. Raises ValueError for a field that there is not."""
    if not isinstance(settings, Sampling | Beams):
        raise ValueError(f"expected a Sampling or Beams record, or its fields by name, got {settings!r}")
    known = [field.name for field in fields(settings)]
    if unknown := [name for name in options if name not in known]:
        raise ValueError(f"{type(settings).__name__} has no option {', '.join(unknown)}; it has {', '.join(known)}")
    return replace(settings, **options)


def with_ids(settings: Settings, vocab_size: int, **own: Sequence[int]) -> Settings:
    """Settings with further ids in their fields, each once; those past the vocabulary, which never come, left out."""
    both = {name: (*vars(settings)[name], *(id for id in ids if 0 <= id < vocab_size)) for name, ids in own.items()}
    return replace(settings, **{name: tuple(dict.fromkeys(ids)) for name, ids in both.items()})

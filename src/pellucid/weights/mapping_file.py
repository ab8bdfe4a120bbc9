"""A mapping file: what a user writes so that any file of weights opens, in TOML or JSON, beside the weights.

    weights = "model.npz"          # or several; .npz, .safetensors, .safetensors.index.json, .pt, .pth, .bin
    dtype = "float32"              # optional: the precision to run in; else the file's own
    tokenizer = "tok512.bin"       # optional
    ignored = ["blocks.{}.mask"]   # optional: what the files hold beside the weights

    [config]                       # the fields of Config; a record is a table that names its kind
    norm = {kind = "RMSNorm", eps = 1e-6}

    [names]                        # ours = theirs, {} is the layer; without .weight or .bias: both
    "embed.token.weight" = "E"
    "blocks.{}.attention.out.weight" = {from = "l.{}.o", transposed = true}
    "blocks.{}.attention.qkv.weight" = {from = ["l.{}.q", "l.{}.k", "l.{}.v"], rotation = "interleaved"}

    [generation]                   # optional
    eos_token_id = 2

`transposed`: the file's matrix is [in, out]. `rotation`: the rows of queries and keys pair neighbours.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..model.config import Config
from ..model.rotary import Rotary
from .errors import CheckpointError
from .fields import Fields
from .files import check_regular, file_in, parse_json, shown
from .generation_settings import check_generation
from .names import Entry, Layout, part_of
from .order import neighbours
from .reading import precision

_MOST_BYTES = 1_000_000
_STACKS = {"attention.qkv": 3, "cross.kv": 2}  # which of ours may be made of how many of theirs


@dataclass(frozen=True)
class Mapped:
    """What a mapping file says; every file it names is there, in its folder."""

    config: Config
    layout: Layout
    weights: tuple[Path, ...]
    dtype: torch.dtype | None
    tokenizer: Path | None
    generation: Mapping[str, Any]


def read_mapping(path: Path) -> Mapped:
    """Read and check a mapping file. Raises CheckpointError that says what was expected and what came."""
    fields = Fields(_parse(path), str(path))
    config = _config(path, _table(fields, "config"))
    entries = tuple(_entry(fields, ours, theirs, config) for ours, theirs in _table(fields, "names").items())
    given = fields.collect("weights", "ignored", "dtype")
    tokenizer = fields.text("tokenizer", "")
    generation = _table(fields, "generation") if "generation" in fields else {}
    fields.close()
    check_generation(generation, f"generation of {path}", config)
    ignored = tuple(_pattern(name) for name in _texts(fields, "ignored", given.get("ignored", [])))
    names = _texts(fields, "weights", given.get("weights", []))
    if not names:
        raise fields.error("weights is missing, expected the name of a file beside this one, or a list of names")
    return Mapped(
        config,
        Layout(path.name, entries, ignored=ignored),
        tuple(_beside(path, name) for name in names),
        precision(given.get("dtype")),
        _beside(path, tokenizer) if tokenizer else None,
        generation,
    )


def _parse(path: Path) -> dict[str, Any]:
    check_regular(path)
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise CheckpointError(
            f"{path}: expected a mapping file of at most {_MOST_BYTES} bytes. Check what this file is"
        )
    if path.suffix == ".json":
        values = parse_json(data, path, "the mapping")
        if "config" not in values and not values.keys().isdisjoint(("model_type", "architectures")):
            raise CheckpointError(
                f"{path}: expected a mapping file, got a checkpoint's own config. A folder is opened by its name: "
                f"{shown([str(path.parent)])}"
            )
    else:
        try:
            values = tomllib.loads(data.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path}: not valid TOML ({error})") from error
    if odd := [number for number in _numbers(values) if not abs(number) <= 1e308]:
        raise CheckpointError(f"{path}: expected finite numbers, got {shown(odd)}")
    return values


def _numbers(value: object) -> Iterator[float]:
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _numbers(item)


def _config(path: Path, values: Mapping[str, Any]) -> Config:
    try:
        return Config.from_dict(values)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _entry(fields: Fields, ours: str, theirs: object, config: Config) -> Entry:
    own = Fields(theirs if isinstance(theirs, Mapping) else {"from": theirs}, f"{ours} of {fields.where}")
    names = tuple(_texts(own, "from", own.collect("from").get("from", [])))
    transposed, rotation = own.flag("transposed", False), own.text("rotation", "")
    own.close()
    stem = re.sub(r"^(encoder\.)?(blocks\.\{\}\.)?|(\.(weight|bias))?$", "", ours)
    if len(names) not in (1, _STACKS.get(stem, 1)):
        raise own.error(f"is made of one tensor{_or_stack(stem)}, got {len(names)}: {shown(names)}")
    places = ours.count("{}")
    for name in names:
        if name.count("{}") != places or re.search(r"[{}]", name.replace("{}", "")):
            raise own.error(f"{shown([name])} must have {{}} for the layer exactly where {shown([ours])} has it")
    rotary = isinstance(part_of(config, ours).positions, Rotary)
    if rotation and not (rotation == "interleaved" and stem == "attention.qkv" and rotary):
        raise own.error(
            f"rotation={shown([rotation])} is not supported: it is 'interleaved', and for attention.qkv where the "
            "config's positions are Rotary"
        )
    return Entry(ours, names, transposed, order=neighbours if rotation else None)


def _or_stack(stem: str) -> str:
    return f", or of {_STACKS[stem]} stacked" if stem in _STACKS else ""


def _table(fields: Fields, name: str) -> dict[str, Any]:
    value = fields.collect(name).get(name)
    if not isinstance(value, dict) or not value:
        raise fields.error(f"{name} must be a table, got {shown([value])}")
    return value


def _texts(fields: Fields, name: str, value: object) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise fields.error(f"{name} must be a name or a list of names, got {shown([value])}")
    return texts


def _pattern(name: str) -> str:
    return r"\d+".join(re.escape(part) for part in name.split("{}"))


def _beside(path: Path, name: str) -> Path:
    found = file_in(path.parent, name)
    check_regular(found)
    return found

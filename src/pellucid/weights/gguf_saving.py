"""Saving a model as one .gguf file, whole or not at all."""

import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..model.config import Config
from ..model.rotary import Llama3, LongRope, Rotary, Yarn
from ..model.transformer import Transformer
from .errors import CheckpointError
from .expressing import comparable
from .files import sync_folder
from .gguf_file import GGUF, GGUFTensor
from .gguf_form import Form
from .gguf_forms import FORMS
from .gguf_writing import TYPES, kinds_of, write_file
from .names import write


def save_gguf(
    path: str | os.PathLike[str],
    transformer: Transformer,
    *,
    type: str = "F16",
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Save a model as a .gguf file, for a llama, gpt2, gptneox or bert; gives back its path.

    `type` is that of the matrices: F32, F16, BF16 or Q8_0 (blocks of 32 in eight bits; a matrix whose rows are no
    multiple of 32 becomes F16). Vectors, norms and tables of positions stay F32. `metadata` are further entries: the
    tokenizer's (`tokenizer.*`) and the file's own (`general.*`). Written with the gguf package, aside and moved into
    place.

    Raises CheckpointError, before anything is written, for a config that no architecture of GGUF can express, with
    what it has no place for; where the gguf package is missing; and for metadata of other kinds.
    """
    path = Path(path).expanduser().resolve()
    type = type.upper()
    if type not in TYPES:
        raise CheckpointError(f"no type {type!r} to save in, only {', '.join(TYPES)}")
    if not path.parent.is_dir():
        raise CheckpointError(f"{path}: its folder does not exist. Make it first")
    config, state = transformer.config, transformer.state_dict()
    form = form_for(config, state)
    tensors = {**write(form.layout, state, config), **form.extra(config)}
    entries = {**form.write_metadata(config), **_passed_on(metadata or {})}
    kinds_of(entries)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        write_file(aside, form.architecture, entries, tensors, type)
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    sync_folder(path.parent)
    return path


def form_for(config: Config, state: Mapping[str, Tensor]) -> Form:
    """The architecture that can express a config. Raises CheckpointError with what the nearest has no place for."""
    faults = {name: _inexpressible(form, config, state) for name, form in FORMS.items()}
    nearest = min(faults, key=lambda name: len(faults[name]))
    if faults[nearest]:
        raise CheckpointError(
            f"no architecture of GGUF can hold this model; the nearest, {nearest}, has no place for "
            f"{'; '.join(faults[nearest])}"
        )
    return FORMS[nearest]


def _inexpressible(form: Form, config: Config, state: Mapping[str, Tensor]) -> list[str]:
    """What the architecture has no place for: its metadata written, read back and compared."""
    seen: dict[str, GGUFTensor] = {}
    unplaced, nothing = [], torch.empty(0, 0, dtype=torch.uint8)
    for ours, weight in state.items():
        try:
            stored = write(form.layout, {ours: weight.to("meta")}, config)
        except CheckpointError:
            unplaced.append(ours)
            continue
        seen |= {name: GGUFTensor(name, "F32", tuple(tensor.shape), nothing) for name, tensor in stored.items()}
    for name, tensor in form.extra(config).items():
        seen[name] = GGUFTensor(name, "F32", tuple(tensor.shape), tensor.view(1, -1).view(torch.uint8))
    try:
        back = form.read_config(GGUF(Path(form.architecture), 3, form.write_metadata(config), seen))
    except ValueError as error:
        return [str(error), *unplaced]
    wanted, got = (comparable(each).to_dict() for each in (_as_stated(config, form), back))
    return [f"{name}={vars(config)[name]}" for name in wanted if not _alike(wanted[name], got[name])] or unplaced


def _as_stated(config: Config, form: Form) -> Config:
    """The config with its rotation as the file has it: divisors pair by pair, YaRN's magnitude as a number."""
    rotary, extra = config.positions, form.extra(config)
    if not isinstance(rotary, Rotary):
        return config
    scaling = rotary.scaling
    if isinstance(scaling, Yarn) and scaling.magnitude is None:
        scaling = replace(scaling, magnitude=0.1 * math.log(max(scaling.factor, 1.0)) + 1.0)
    if isinstance(scaling, Llama3) and extra:
        (factors,) = (tuple(tensor.tolist()) for tensor in extra.values())
        scaling = LongRope(factors, factors, config.context_length, factor=1.0, magnitude=1.0)
    return replace(config, positions=replace(rotary, scaling=scaling))


def _alike(one: Any, other: Any) -> bool:
    """Whether plain data is the same up to the rounding of the file's 32 bits."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    return one == other


def _passed_on(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's entries, less what the writer states itself, and empty lists, which the format's writer refuses."""
    own = ("general.architecture", "general.file_type", "general.alignment", "general.quantization_version")
    wrong = [key for key in metadata if not key.startswith(("tokenizer.", "general."))]
    if wrong:
        raise CheckpointError(f"metadata is for tokenizer.* and general.*, got {', '.join(wrong[:5])}")
    return {key: value for key, value in metadata.items() if key not in own and value != []}

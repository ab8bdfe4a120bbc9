"""Low-rank adapters on disk, as the package PEFT keeps them: adapter_config.json and adapter_model.safetensors.

An adapter adds scale * B A to some matrices of a model, with A [r, in], B [out, r] and scale = alpha / r (Hu et al.
2021). Files name the matrices as the model's own checkpoint does, so that a fused one of ours may take several.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from ..model.config import Config
from ..model.layers import Linear
from .errors import CheckpointError
from .expressing import family_for
from .files import check_regular, parse_json, shown, sync_folder
from .names import part_of, rows
from .outline import outline
from .safetensors_file import open_safetensors, save_safetensors

SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
# What a file says of itself, and what changes nothing about the matrices; the rest must be off, or is read.
_TOLD = frozenset(
    (
        "peft_type", "peft_version", "task_type", "base_model_name_or_path", "revision", "auto_mapping", "bias",
        "inference_mode", "init_lora_weights", "lora_dropout", "fan_in_fan_out", "target_modules", "exclude_modules",
        "layers_to_transform", "layers_pattern", "megatron_core", "qalora_group_size", "eva_config", "corda_config",
        "loftq_config", "r", "lora_alpha", "rank_pattern", "use_rslora", "ensure_weight_tying", "alpha_pattern",
    )
)  # fmt: skip
# Ways to draw A and B; the others change the model's own matrices too.
_STARTS = (True, False, None, "gaussian", "orthogonal", "eva")


@dataclass(frozen=True)
class Place:
    """One matrix of the file's: `theirs`, which is the rows `first` up to `last` of ours, each of `width` numbers;
    `order` says which of these each of its own is (None: the same). `part` is "query", "key" or "value" within a fused
    matrix, else "". `turned`: the file keeps the matrix as [in, out]."""

    ours: str
    theirs: str
    first: int
    last: int
    width: int
    part: str = ""
    order: Int[Tensor, "rows"] | None = None
    turned: bool = False


@dataclass(frozen=True)
class Update:
    """scale * B A, added to the matrix at a place; rows of B stand as those of our matrix."""

    place: Place
    A: Float[Tensor, "r D"]
    B: Float[Tensor, "rows r"]
    scale: float


@dataclass(frozen=True)
class Shape:
    """What an adapter's file says beside its matrices: rank, alpha, dropout, and the model that it belongs to."""

    r: int
    alpha: float
    dropout: float = 0.0
    base: str | None = None


def places(config: Config) -> list[Place]:
    """Every matrix inside the blocks of a model of this shape, as its family's files keep them."""
    like = outline(config)
    state = like.state_dict()
    layout = family_for(config, state).layout(config)
    found: list[Place] = []
    for name, module in like.named_modules():
        if not isinstance(module, Linear) or "blocks." not in name:
            continue
        ours = f"{name}.weight"
        entry, names = layout.of(ours)
        counts = rows(entry, state[ours], config)
        parts = ("",) if len(names) == 1 else ("key", "value") if len(names) == 2 else ("query", "key", "value")
        orders = entry.orders(counts, part_of(config, ours))
        for n, (theirs, part, order) in enumerate(zip(names, parts, orders, strict=True)):
            first = sum(counts[:n])
            full = layout.full(theirs).removesuffix(".weight")
            last, width = first + counts[n], state[ours].shape[1]
            found.append(Place(name, full, first, last, width, part, order, entry.transposed))
    return found


def read_adapter(folder: str | os.PathLike[str], config: Config) -> tuple[Shape, list[Update]]:
    """The updates in a folder for a model of this shape. Raises CheckpointError for settings that ask for more than
    low-rank updates, and for matrices that do not fit the model."""
    folder = Path(folder).expanduser()
    check_regular(folder / SETTINGS)
    values = parse_json((folder / SETTINGS).read_bytes(), folder / SETTINGS, SETTINGS)
    shape = _shape(values, folder / SETTINGS)
    tensors = {name.removeprefix(_PREFIX): tensor for name, tensor in open_safetensors(folder / WEIGHTS).items()}
    known = {place.theirs: place for place in places(config)}
    named = {name.removesuffix(_A).removesuffix(_B) for name in tensors if name.endswith((_A, _B))}
    # A model that was adapted without its head has names without the prefix.
    bare = {theirs.split(".", 1)[1]: theirs for theirs in known}
    where = {name: name if name in known else bare.get(name) for name in named}
    lost = sorted({name for name in tensors if not name.endswith((_A, _B))} | {n for n in named if where[n] is None})
    if lost or not named:
        what = f"has no place for {shown(lost)}" if lost else "finds no low-rank matrices in it"
        raise CheckpointError(f"{folder / WEIGHTS}: this model {what}; it has {shown(sorted(known), most=8)}")
    said, rooted = values.get("alpha_pattern"), bool(values.get("use_rslora"))
    pattern = said if isinstance(said, Mapping) else {}
    updates = []
    for name, theirs in sorted(where.items()):
        a, b = (tensors.get(name + end) for end in (_A, _B))
        place = known[theirs or ""]
        rank = _check(folder / WEIGHTS, name, place, a, b)
        assert a is not None
        assert b is not None
        alpha = _alpha(pattern, name, shape.alpha)
        inside = b if place.order is None else b[place.order.argsort()]
        updates.append(Update(place, a, inside, alpha / (rank**0.5 if rooted else rank)))
    return shape, updates


def write_adapter(
    folder: str | os.PathLike[str], shape: Shape, updates: Sequence[Update], targets: Iterable[str]
) -> Path:
    """Save updates of one rank and alpha in a folder that `read_adapter` and PEFT open; gives back its path.

    `targets` are the endings of names by which PEFT finds the matrices again.
    """
    folder = Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for update in updates:
        order = update.place.order
        stem = _PREFIX + update.place.theirs
        tensors[stem + _A] = update.A
        tensors[stem + _B] = update.B if order is None else update.B[order.to(update.B.device)]
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": shape.base,
        "r": shape.r,
        "lora_alpha": int(shape.alpha) if float(shape.alpha).is_integer() else shape.alpha,
        "lora_dropout": shape.dropout,
        "target_modules": sorted(targets),
        "fan_in_fan_out": any(update.place.turned for update in updates),
        "bias": "none",
        "inference_mode": True,
        "modules_to_save": None,
    }
    save_safetensors(folder / WEIGHTS, tensors)
    aside = folder / f".{SETTINGS}.tmp"
    aside.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    os.replace(aside, folder / SETTINGS)
    sync_folder(folder)
    return folder


def endings(chosen: Sequence[Place], every: Sequence[Place]) -> list[str]:
    """The shortest endings of the files' names that tell the chosen matrices from all others."""
    wanted, found = {place.theirs for place in chosen}, set()
    for place in chosen:
        parts = place.theirs.split(".")
        for n in range(1, len(parts) + 1):
            ending = ".".join(parts[-n:])
            if all(o.theirs in wanted for o in every if f".{o.theirs}".endswith(f".{ending}")):
                found.add(ending)
                break
    return sorted(found)


def _shape(values: Mapping[str, Any], path: Path) -> Shape:
    if values.get("peft_type") != "LORA":
        raise CheckpointError(f"{path}: expected peft_type LORA, got {shown([values.get('peft_type')])}")
    odd = {name: value for name, value in values.items() if name not in _TOLD and value}
    if values.get("bias", "none") != "none":
        odd["bias"] = values["bias"]
    if values.get("init_lora_weights", True) not in _STARTS:
        odd["init_lora_weights"] = values["init_lora_weights"]
    if odd:
        raise CheckpointError(
            f"{path}: {shown(odd)} ask for more than low-rank updates, which are what is read here. "
            "Merge this adapter with the package that made it"
        )
    rank, alpha, dropout = values.get("r"), values.get("lora_alpha"), values.get("lora_dropout", 0.0)
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise CheckpointError(f"{path}: r must be a whole number of at least 1, got {shown([rank])}")
    for name, number in (("lora_alpha", alpha), ("lora_dropout", dropout)):
        if not isinstance(number, int | float) or isinstance(number, bool):
            raise CheckpointError(f"{path}: {name} must be a number, got {shown([number])}")
    if not isinstance(values.get("alpha_pattern") or {}, Mapping):
        raise CheckpointError(f"{path}: alpha_pattern must be a mapping, got {shown([values['alpha_pattern']])}")
    base = values.get("base_model_name_or_path")
    return Shape(rank, float(alpha or 0), float(dropout or 0), base if isinstance(base, str) else None)


def _check(path: Path, name: str, place: Place, a: Tensor | None, b: Tensor | None) -> int:
    """The rank of an update, whose two matrices must be there and fit together."""
    if a is None or b is None:
        raise CheckpointError(f"{path}: {name} needs both lora_A and lora_B")
    rank, out = a.shape[0] if a.ndim else 0, place.last - place.first
    if not rank or tuple(a.shape) != (rank, place.width) or tuple(b.shape) != (out, rank):
        raise CheckpointError(
            f"{path}: {name} takes lora_A of [r, {place.width}] and lora_B of [{out}, r], "
            f"got {list(a.shape)} and {list(b.shape)}"
        )
    if not (a.is_floating_point() and b.is_floating_point()):
        raise CheckpointError(f"{path}: {name} is stored as {a.dtype} and {b.dtype}, expected floating point")
    return rank


def _alpha(pattern: Mapping[str, Any], name: str, usual: float) -> float:
    """The alpha of one matrix: that of the first ending in the pattern which its name has, or else the usual one."""
    for ending, alpha in pattern.items():
        if name == ending or name.endswith(f".{ending}"):
            return float(alpha)
    return usual

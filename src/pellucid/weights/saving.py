"""Saving a model as a folder of Hugging Face's form, whole or not at all."""

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from torch import Tensor

from ..model.transformer import Transformer
from .checkpoint import EDITS
from .errors import CheckpointError
from .expressing import family_for
from .files import file_in, shown, sync_folder
from .names import write
from .safetensors_file import INDEX, ONE_FILE, save_safetensors

SHARD_BYTES = 5_000_000_000
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "encoder.json", "vocab.bpe", "vocab.txt", "tokenizer.model", "source.spm", "target.spm",
    "chat_template.jinja",
)  # fmt: skip
_BESIDE = (*TOKENIZER_FILES, EDITS)
_OWN = ("config.json", "generation_config.json", ONE_FILE, "model-*-of-*.safetensors", INDEX, *_BESIDE)


def save_checkpoint(
    folder: str | os.PathLike[str],
    transformer: Transformer,
    *,
    layout: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    generation: Mapping[str, Any] | None = None,
    beside: Mapping[str, bytes] | None = None,
) -> Path:
    """Save a model as a folder that `load_checkpoint` reads, and releases 4 and 5 of transformers, but for our own
    layout; gives back its path.

    `layout` is a family's model_type: "pellucid" is our own, which expresses any config and which only Pellucid reads;
    "hf" the first of Hugging Face's that can express this one, None that or else our own. `generation` is what goes to
    generation_config.json, `beside` the contents of a tokenizer's files and of edits.json by name. Weights go to one
    file, or to shards of at most `shard_bytes` where they take more. The folder is written aside and moved into place:
    a checkpoint that stands there is replaced as a whole, and stays if anything fails.

    Raises CheckpointError, before anything is written, for a config that the layout cannot express, with what it has
    no place for, and for a folder that holds other files than a checkpoint's. Dropout rates are kept as far as the
    family's config.json names them.
    """
    folder = Path(folder).expanduser().resolve()
    _check_target(folder, beside or {})
    config, state = transformer.config, transformer.state_dict()
    family = family_for(config, state, layout)
    tensors = write(family.layout(config), state, config)
    generation = {name: value for name, value in (generation or {}).items() if value is not None}
    fields = {"model_type": family.model_type, **family.write_config(config), **_common(tensors, generation)}
    with _replacing(folder) as aside:
        _write_json(aside / "config.json", fields)
        if generation:
            _write_json(aside / "generation_config.json", generation)
        for name, content in (beside or {}).items():
            (aside / name).write_bytes(content)
        _save_weights(aside, tensors, shard_bytes)
    return folder


def tokenizer_files(folder: str | os.PathLike[str]) -> dict[str, bytes]:
    """The contents of the files in a folder that belong to its tokenizer, by name."""
    paths = {name: file_in(Path(folder), name) for name in TOKENIZER_FILES}
    return {name: path.read_bytes() for name, path in paths.items() if path.is_file()}


def _common(tensors: Mapping[str, Tensor], generation: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of every family: the precision in both spellings, and ids, absent ones too (a class has defaults)."""
    ids = {name: generation.get(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    if "decoder_start_token_id" in generation:
        ids["decoder_start_token_id"] = generation["decoder_start_token_id"]
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()}
    return ids | ({"dtype": min(dtypes), "torch_dtype": min(dtypes)} if len(dtypes) == 1 else {})


def _save_weights(folder: Path, tensors: Mapping[str, Tensor], shard_bytes: int) -> None:
    shards = _shards(tensors, shard_bytes)
    if len(shards) == 1:
        save_safetensors(folder / ONE_FILE, tensors)
        return
    files = {f"model-{i:05}-of-{len(shards):05}.safetensors": names for i, names in enumerate(shards, 1)}
    for file, names in files.items():
        save_safetensors(folder / file, {name: tensors[name] for name in names})
    total = sum(tensor.nbytes for tensor in tensors.values())
    weight_map = {name: file for file, names in files.items() for name in names}
    _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _shards(tensors: Mapping[str, Tensor], shard_bytes: int) -> list[list[str]]:
    """Names in runs of at most `shard_bytes`; a tensor larger than that is a run of its own."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += tensor.nbytes
    return shards


def _check_target(folder: Path, names: Mapping[str, bytes]) -> None:
    if not folder.parent.is_dir():
        raise CheckpointError(f"{folder}: its folder {folder.parent} does not exist. Make it first")
    if folder.suffix == ".gguf":
        raise CheckpointError(f"{folder}: a folder is written here; `pellucid convert` writes .gguf files")
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder}: expected a folder, or nothing there yet; found a file")
    wrong = [name for name in names if name not in _BESIDE]
    if wrong:
        raise CheckpointError(f"{shown(wrong)} has no place beside weights, only {', '.join(_BESIDE)}")
    foreign = sorted(each.name for each in folder.iterdir() if not _is_own(each)) if folder.exists() else []
    if foreign:
        raise CheckpointError(
            f"{folder}: this folder holds other things than a checkpoint's files, and would be replaced: "
            f"{shown(foreign)}. Choose another one"
        )


def _is_own(path: Path) -> bool:
    return path.is_file() and any(fnmatch(path.name, pattern) for pattern in _OWN)


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, which takes its place when all went well, and else is taken away."""
    mark = secrets.token_hex(8)
    aside, old = (folder.with_name(f".{folder.name}.{mark}.{ending}") for ending in ("tmp", "old"))
    aside.mkdir()
    try:
        yield aside
        sync_folder(aside)
        if folder.exists():
            os.rename(folder, old)
        try:
            os.rename(aside, folder)
        except BaseException:
            if old.exists():
                os.rename(old, folder)
            raise
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    with path.open("x", encoding="utf-8") as file:
        json.dump(values, file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())

"""Traces out of files. Nothing that a file says is believed before it is checked."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..model.config import Config
from ..model.place import place_of
from ..model.transformer import Transformer, check_ids
from ..text import Tokenizer
from .edit_files import edit_from
from .errors import TraceFileError, WeightsChangedError
from .plan import plan
from .reading import Recording, prints, state_sites
from .rerun import made_with
from .run import Precision
from .trace import Trace
from .trace_file import KEY, SCHEMA

_MOST_JSON = 64_000_000


def load_trace(path: str | os.PathLike[str], transformer: Transformer, tokenizer: Tokenizer | None = None) -> Trace:
    """The trace in a file, of the model that made it.

    Raises TraceFileError for a file that holds no trace, or one of a model of another shape, and WeightsChangedError
    where the weights are others.
    """
    path = Path(path)
    if not path.is_file():
        raise TraceFileError(f"{path}: expected the file of a trace, and there is none")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            sides = _sides(path, file.metadata())
            names = file.keys()
            tensors = [
                {name.partition(".")[2]: file.get_tensor(name) for name in names if name.partition(".")[0] == str(at)}
                for at in range(len(sides))
            ]
    except SafetensorError as error:
        raise TraceFileError(f"{path}: not a sound safetensors file ({error})") from error
    models = [transformer] if transformer.encoder is None else [transformer.encoder, transformer]
    if len(models) != len(sides):
        raise TraceFileError(f"{path}: the trace has {len(sides)} sides, the model {len(models)}")
    found = None
    for about, held, model in zip(sides, tensors, models, strict=True):
        try:
            found = _run(about, held, model, tokenizer, found)
        except WeightsChangedError:
            raise
        except (KeyError, TypeError, AttributeError) as error:
            raise TraceFileError(f"{path}: it lacks {error}, or holds it wrongly") from error
        except ValueError as error:
            raise TraceFileError(f"{path}: {error}") from error
    assert found is not None, "a file has one side at least"
    return found


def _sides(path: Path, metadata: Mapping[str, str] | None) -> list[dict[str, Any]]:
    text = (metadata or {}).get(KEY, "null")
    try:
        about = json.loads(text) if len(text) <= _MOST_JSON else None
    except (ValueError, RecursionError) as error:
        raise TraceFileError(f"{path}: its header is no JSON ({error})") from error
    if not isinstance(about, dict) or about.get("schema") != SCHEMA:
        raise TraceFileError(f"{path}: expected a file with the schema {SCHEMA!r}")
    sides = about.get("sides")
    if not isinstance(sides, list) or len(sides) not in (1, 2) or not all(isinstance(side, dict) for side in sides):
        raise TraceFileError(f"{path}: expected one side, or an encoder's and a decoder's")
    return sides


def _run(
    about: Mapping[str, Any],
    held: Mapping[str, Tensor],
    model: Transformer,
    tokenizer: Tokenizer | None,
    source: Trace | None,
) -> Trace:
    if Config.from_dict(about["config"]) != model.config:
        raise TraceFileError("the trace is of a model of another shape")
    ids, device = held["ids"], model.W_U.device
    if ids.ndim != 2:
        raise TraceFileError(f"ids must be batch x positions, got shape {list(ids.shape)}")
    check_ids(ids, model.config.vocab_size)
    length, mask = about["length"], held.get("mask")
    if type(length) is not int or not 1 <= length <= 2**40:
        raise TraceFileError(f"length must be a whole number of at least 1, got {length!r}")
    place = place_of((ids.shape[0], ids.shape[1]), mask, device, None, length)
    states = [held[f"state.{at}"] for at in range(len(state_sites(model)))]
    shape = (*ids.shape, model.config.d_model)
    if any(tuple(state.shape) != shape or not state.is_floating_point() for state in states):
        raise TraceFileError(f"each state must hold numbers of shape {list(shape)}")
    if any(bool(state.isnan().any()) for state in states):
        raise TraceFileError("its states hold what is not a number (NaN)")
    types = held.get("types")
    if types is not None and (types.shape != ids.shape or types.dtype != ids.dtype):
        raise TraceFileError("types must be whole numbers of the ids' shape")
    now = prints(model)
    for group, sample in now.items():
        if not torch.equal(held[f"print.{group}"].to(sample.device), sample):
            raise WeightsChangedError(f"the weights of {group} are not those that the trace was made with")
    recording = Recording(
        model, ids.to(device), None if types is None else types.to(device), tuple(state.to(device) for state in states)
    )
    found = Trace(recording, place, _precision(about["precision"]), tokenizer, now, source)
    edits = [edit_from(edit, f"edit {at}") for at, edit in enumerate(about["edits"])]
    plan(model, edits)
    return made_with(found, edits)


def _precision(data: Mapping[str, Any]) -> Precision:
    dtypes = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}
    if (
        data["dtype"] not in dtypes
        or type(data["autocast"]) is not bool
        or data["device"] not in ("cpu", "cuda", "mps")
    ):
        raise TraceFileError(f"its precision is not one that there is, got {str(dict(data))[:80]}")
    return Precision(data["device"], data["autocast"], dtypes[data["dtype"]])

"""Traces as files: one safetensors file, whose header says in JSON what they are of. `trace_opening` reads them.

header "pellucid": {"schema": "pellucid trace 1", "sides": [side]}, or an encoder's side and a decoder's
side: {"config": the model's, "length": that rotary frequencies were made for, "precision", "edits"}
tensors of side i: "i.ids" B x T, "i.types" B x T if any, "i.mask" B x T where padded (0 padding, else the number of
    the document), "i.state.n" B x T x D, and "i.print.group", a sample of the weights that made them
"""

import json
import os
from dataclasses import fields
from typing import Any

from safetensors.torch import save
from torch import Tensor

from .put import put
from .run import Run

KEY, SCHEMA = "pellucid", "pellucid trace 1"


def save_trace(trace: Run, path: str | os.PathLike[str]) -> None:
    """Write a trace, without its model and tokenizer. Raises EditError for one that a free function edited."""
    sides = [trace] if trace.source is None else [trace.source, trace]
    tensors = {f"{at}.{name}": tensor for at, side in enumerate(sides) for name, tensor in _tensors(side).items()}
    about = {"schema": SCHEMA, "sides": [_about(side) for side in sides]}
    put(path, save(tensors, {KEY: json.dumps(about, allow_nan=False)}))


def _tensors(side: Run) -> dict[str, Tensor]:
    held, place = {"ids": side.ids}, side.place
    if place.real is not None:
        held["mask"] = place.real.long() if place.document is None else place.document
    held |= {} if side.recording.types is None else {"types": side.recording.types}
    held |= {f"state.{at}": state for at, state in enumerate(side.states)}
    held |= {f"print.{group}": sample for group, sample in side.prints.items()}
    # Cloned: a file holds no two names for one piece of memory.
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in held.items()}


def _about(side: Run) -> dict[str, Any]:
    precision = {field.name: getattr(side.precision, field.name) for field in fields(side.precision)}
    return {
        "config": side.transformer.config.to_dict(),
        "length": side.place.length,
        "precision": {**precision, "dtype": str(precision["dtype"]).removeprefix("torch.")},
        "edits": [edit.to_json() for edit in side.plan.edits],
    }

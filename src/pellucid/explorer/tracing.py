"""Running a text, layer by layer: told as it goes on, and broken off between two layers when nobody waits any more."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..front import Model
from ..inside.reading import chain
from ..inside.recorder import Recorder
from ..inside.rerun import check_reached, edited
from ..inside.shown.edits_said import edit_said
from ..inside.shown.summary import trace_info
from ..inside.trace import Trace, recorded
from ..model.config import Dropout
from ..model.flow import Look, Looks, Memory
from ..model.place import Place
from ..model.transformer import Transformer
from ..text import Tokenizer
from ..views.table import plain
from .models import Held
from .prompts import Read, bytes_of, said
from .refusals import over
from .traces import Kept, Traces, id_of
from .worker import Job


def traced(held: Held, prompt: Read, traces: Traces, job: Job) -> dict[str, Any]:
    """What pages are told of a run, made where it is not kept yet.

    Edits are made in the run without them, which is kept too: so what comes before them stays as it was to the bit.
    """
    transformer = held.model.transformer
    size = bytes_of(transformer, prompt.ids, prompt.source)
    if size > traces.most:
        raise over("too_large", "bytes of this run", size, traces.most)
    found = traces.find(_id(held, prompt))
    if found is None:
        bare = replace(prompt, edits=())
        found = traces.find(_id(held, bare)) or traces.put(_kept(held, bare, _first(held.model, prompt, job)))
        if prompt.edits:
            check_reached(found.run, prompt.edits)
            run = edited(found.run, prompt.edits, _watch(transformer, job, "edit"))
            found = traces.put(_kept(held, prompt, run))
    return {**found.info, "text": prompt.text}  # others may have written these tokens in another way


def _first(model: Model, prompt: Read, job: Job) -> Trace:
    """The run without the request's edits, with those that the model has of its own."""
    transformer, watch = model.transformer, _watch(model.transformer, job, "trace")
    encoder = None
    if transformer.encoder is not None:
        assert prompt.source is not None, "a prompt of a model with an encoder has a source"
        encoder = _run(transformer.encoder, prompt.source, watch, model.tokenizer)
    memory = None if encoder is None else encoder.memory()
    run = replace(_run(transformer, prompt.ids, watch, model.tokenizer, memory), source=encoder)
    return edited(run, model.edits, watch) if model.edits else run


def _run(
    transformer: Transformer,
    ids: Sequence[int],
    watch: Looks,
    tokenizer: Tokenizer | None,
    memory: Memory | None = None,
) -> Trace:
    tokens, recorder = torch.tensor([list(ids)], device=transformer.W_U.device), Recorder(transformer)
    here = transformer.begin(tokens, looks=chain(recorder.looks, watch), memory=memory)
    here = replace(here, dropout=Dropout())
    transformer.run(transformer.embed(tokens, here), here)
    return recorded(transformer, recorder, tokens, tokenizer)


def _watch(transformer: Transformer, job: Job, stage: str) -> Looks:
    """Looks at the state after each block, the encoder's first: each is one step done of all there are."""
    ends = []
    for side in filter(None, (transformer.encoder, transformer)):
        ends += [f"{side.prefix}{layer + 1}.stream" for layer in range(side.config.n_layers)]
    job.tell("progress", {"stage": stage, "done": 0, "total": len(ends)})

    def look(done: int) -> Look:
        def see(value: Tensor, _place: Place, _keys: Place | None) -> Tensor:
            job.tell("progress", {"stage": stage, "done": done, "total": len(ends)})
            return value

        return see

    return {site: look(at + 1) for at, site in enumerate(ends)}


def _kept(held: Held, prompt: Read, run: Trace) -> Kept:
    id = _id(held, prompt)
    info = {**trace_info(run, id, held.id, prompt.text), "edits": [edit_said(edit) for edit in prompt.edits]}
    return Kept(id, held.id, run, plain(info))


def _id(held: Held, prompt: Read) -> str:
    return id_of(held.id, prompt.ids, prompt.source, said(prompt.edits))

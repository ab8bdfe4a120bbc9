"""Continuing a text, token by token, and the choice of one token step by step."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..front import Model
from ..generation import Sampling, Watch, stream
from ..generation.choose import Chooser
from ..generation.options import with_ids
from ..generation.prompts import without_text
from ..generation.warp import draw, min_p, temperature, top_k, top_p
from ..inside.plan import plan
from ..inside.run import Run
from .bodies import Continuing, Drawing
from .prompts import Read, too_long
from .refusals import RefusedError, over
from .settings import Settings
from .worker import Job

NEW_TOKENS = 32  # where a request does not say how many
CANDIDATES = 40


def check_new_tokens(body: Continuing, settings: Settings) -> None:
    """Refuse more new tokens than one request may ask for."""
    if body.max_new_tokens is not None and body.max_new_tokens > settings.new_tokens:
        raise over("too_many_new_tokens", "new tokens", body.max_new_tokens, settings.new_tokens)


def continued(model: Model, body: Continuing, prompt: Read, settings: Settings, job: Job) -> dict[str, Any]:
    """The continuation, each token told as it comes. Raises RefusedError where it cannot fit the model's context."""
    transformer = model.transformer
    if not model.config.causal or transformer.unembed is None:
        raise RefusedError(
            400, "no_continuation", f"{model.name} continues no text: it sees both ways, or has no logits"
        )
    given, context = len(prompt.ids), model.config.context_length
    if body.max_new_tokens is not None and given + body.max_new_tokens > context:
        what = f"tokens, {given:,} of the prompt and {body.max_new_tokens:,} new, for the model's context"
        raise too_long(what, given + body.max_new_tokens, context)
    room = min(NEW_TOKENS, settings.new_tokens, context - given)
    new = room if body.max_new_tokens is None else body.max_new_tokens
    sampling = sampling_of(model, body, max_new_tokens=new, stop=tuple(body.stop))
    watch = Watch(plan(transformer, (*model.edits, *prompt.edits)).looks())
    text, ids, reason = "", [], "length"
    for piece in stream(transformer, model.tokenizer, prompt.ids, sampling, watch, prompt.source):
        job.tell("token", {"text": piece.text, "id": piece.id, "logprob": piece.logprob})
        text, ids, reason = text + piece.text, [*ids, piece.id], piece.finish_reason or reason
    return {"finish_reason": reason, "ids": ids, "text": text}


def sampling_of(model: Model, body: Drawing | Continuing, **more: Any) -> Sampling:
    """How tokens are chosen, with the ids that the model's own settings end with and forbid."""
    fields = {name: getattr(body, name) for name in ("temperature", "top_k", "top_p", "min_p", "seed")}
    return with_ids(
        Sampling(**fields, **more), model.config.vocab_size, stop_ids=model.eos_ids, forbidden_ids=model.forbidden_ids
    )


def drawn(model: Model, run: Run, sampling: Sampling) -> dict[str, Any]:
    """How the token after a run is chosen: each candidate's probability after each step, and what is drawn.

    The most probable candidates are listed; `kept` counts all that are left after a step. `u` is the random number that
    chooses, None where the most probable token is taken: it lies between `from` and `to` of the token that it chooses,
    in the running sum over all ids of what is left. It is the token that `generate` begins with.
    """
    if run.transformer.unembed is None:
        raise ValueError(f"{model.name} has no head that makes logits: there is nothing to draw")
    if sampling.seed is None:
        sampling = replace(sampling, seed=int(torch.randint(2**62, ())))
    logits = run.logits_at(0, [run.column()])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    words, forbidden = run.transformer.embed.words, without_text(run.transformer, model.tokenizer)
    chooser = Chooser(sampling, [run.ids[0].tolist()], words, forbidden)
    allowed = chooser.penalise(logits, [0])
    steps = _steps(allowed, sampling)
    chosen, u = int(allowed.argmax()), None
    if sampling.temperature:
        uniform = torch.rand((1, 1), generator=chooser.generators[0], dtype=torch.float64)
        chosen, u = int(draw(steps["min_p"], uniform).clamp(max=logits.shape[-1] - 1)), float(uniform)
    shares = {name: step.softmax(-1)[0] for name, step in steps.items()}
    sums = shares["min_p"].cpu().double().cumsum(-1)
    sums = torch.cat((torch.zeros(1), sums)) / sums[-1]
    return {
        "candidates": _candidates(run, logits[0], shares, sums),
        "kept": {name: int((share > 0).sum()) for name, share in shares.items()},
        "chosen": {"id": chosen, "token": _label(run, chosen), "u": u, "seed": sampling.seed, **_between(sums, chosen)},
    }


def _steps(logits: Float[Tensor, "one V"], sampling: Sampling) -> dict[str, Float[Tensor, "one V"]]:
    """The logits after each step, one after another; a step that is switched off changes nothing."""
    steps = {"temperature": temperature(logits, sampling.temperature)}
    steps["top_k"] = top_k(steps["temperature"], sampling.top_k) if sampling.top_k else steps["temperature"]
    steps["top_p"] = top_p(steps["top_k"], sampling.top_p)
    steps["min_p"] = min_p(steps["top_p"], sampling.min_p) if sampling.min_p else steps["top_p"]
    return steps


def _between(sums: Float[Tensor, "ends"], id: int) -> dict[str, float]:
    """Where a token lies in the running sum, as `warp.draw` makes it."""
    return {"from": float(sums[id]), "to": float(sums[id + 1])}


def _candidates(
    run: Run, logits: Float[Tensor, "V"], shares: dict[str, Float[Tensor, "V"]], sums: Float[Tensor, "ends"]
) -> list[dict[str, Any]]:
    probabilities = logits.softmax(-1)
    return [
        {
            "id": id,
            "token": _label(run, id),
            "logit": float(logits[id]),
            "probability": float(probabilities[id]),
            "after": {name: float(share[id]) for name, share in shares.items()},
            **_between(sums, id),
        }
        for id in logits.topk(min(CANDIDATES, len(logits))).indices.tolist()
    ]


def _label(run: Run, id: int) -> str:
    return str(id) if run.tokenizer is None else run.tokenizer.labels([id])[0]

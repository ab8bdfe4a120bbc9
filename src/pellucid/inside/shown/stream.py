"""The residual stream as a map, depth by position: what is cheap for all of it at once, what lenses say tile by tile.

Axes: N states, P the tokens of the text, D model width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...model.place import columns, row_of
from ...views.packed import Kind, Packed
from ...views.packing import pack
from ..reading import state_sites
from ..run import Run

MOST_CELLS = 8192  # of one tile
_LOGITS_AT_ONCE = 1 << 23  # 32 MB in fp32
_FAR = -1e4  # a logit that far below the largest has no share, and 0 times it is 0
_LARGEST = 60_000.0  # what 16 bits hold, nearly


def stream(run: Run) -> Packed:
    """How long each state is at each token, and how far each step went.

    Arrays `norm` |x_n|, N x P, and `change` |x_n - x_(n-1)|, (N - 1) x P. The meta names the states, and for each step
    the sublayers that took it; `lens` says whether there is a head, so that lenses can be taken.
    """
    at, transformer = run.columns(0), run.transformer
    norms, changes, before = [], [], None
    for state in run.states:
        now = state[0, at].double()
        norms.append(now.norm(dim=-1))
        if before is not None:
            changes.append((now - before).norm(dim=-1))
        before = now
    steps = [[part.name for part in step.parts] for step in transformer.steps]
    meta = {"states": state_sites(transformer), "steps": steps, "lens": transformer.unembed is not None}
    return Packed(meta, (_small("norm", torch.stack(norms)), _small("change", torch.stack(changes))))


def depths(
    run: Run, first_state: int = 0, last_state: int = -1, step: int = 1, first: int = 0, last: int = -1
) -> Packed:
    """What the lens says at the states `first_state` to `last_state` and the tokens `first` to `last`, ends included.

    Of the states every `step`th: with a step of 2 a model with two sublayers a block is read before each block alone.
    Arrays over these states and tokens: `top`, the id of the most probable token, `probability`, its own, and `entropy`
    of all of them in nats. The meta has each such id's label. -1 is the last. Raises ValueError for a model without a
    head, for a range that is none, and for more than MOST_CELLS cells.
    """
    if step < 1:
        raise ValueError(f"step must be at least 1, got {step}")
    states = _range(len(run.states), first_state, last_state, "state")[::step]
    at = [run.columns(0)[column] for column in _range(len(run.columns(0)), first, last, "")]
    if (cells := len(states) * len(at)) > MOST_CELLS:
        raise ValueError(
            f"at most {MOST_CELLS:,} cells are read at once, got {cells:,}: ask for fewer states or tokens"
        )
    run.check(["final"])
    with torch.no_grad(), run.precision.restored():
        read = [_said(run, [run.states[index] for index in some], at) for some in _groups(run, states, len(at))]
    top, probability, entropy = map(torch.cat, zip(*read, strict=True))
    ids = top.unique().tolist()
    labels = [str(id) for id in ids] if run.tokenizer is None else run.tokenizer.labels(ids)
    names = state_sites(run.transformer)
    meta = {
        "states": [names[index] for index in states],
        "indexes": list(states),
        "first": run.columns(0).index(at[0]),
        "labels": {str(id): label for id, label in zip(ids, labels, strict=True)},
    }
    arrays = _small("probability", probability), _small("entropy", entropy)
    return Packed(meta, (pack("top", top.cpu().numpy(), "int32"), *arrays))


def _said(run: Run, states: Sequence[Tensor], at: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Top token, its probability and the entropy at some columns of some states."""
    x = torch.stack([state[0, at] for state in states])
    most = max(1, _LOGITS_AT_ONCE // (run.transformer.config.vocab_size * len(states)))
    found = [_said_at(run, x[:, start : start + most], at[start : start + most]) for start in range(0, len(at), most)]
    top, probability, entropy = (torch.cat(each, 1) for each in zip(*found, strict=True))
    return top, probability, entropy


def _said_at(run: Run, x: Float[Tensor, "n P D"], at: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """The same in one product with the unembedding; large arrays are passed over as seldom as can be."""
    here = run.present(0)
    here = replace(here, place=columns(row_of(here.place, 0), at), rotation=None)
    logits = run.transformer.logits(x, here)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    best, top = logits.max(-1)
    below = logits.sub_(best[..., None])  # z - max; e^z sums to Z, and the entropy is log Z - sum e^z z / Z
    shares = below.exp()
    total = shares.sum(-1)
    mean = torch.linalg.vecdot(shares, below.clamp_(min=_FAR)) / total
    return top, 1 / total, total.log() - mean


def _groups(run: Run, states: range, tokens: int) -> list[range]:
    """States that are read together: as many as keep the logits small, at least one."""
    size = max(1, _LOGITS_AT_ONCE // (run.transformer.config.vocab_size * tokens))
    return [states[start : start + size] for start in range(0, len(states), size)]


def _range(size: int, first: int, last: int, of: str) -> range:
    names = (f"first_{of}", f"last_{of}") if of else ("first", "last")
    if not (-size <= first < size and -size <= last < size):
        raise ValueError(f"{names[0]} and {names[1]} must lie in 0..{size - 1}, got {first} and {last}")
    if first % size > last % size:
        raise ValueError(f"{names[0]} must not come after {names[1]}, got {first} and {last}")
    return range(first % size, last % size + 1)


def _small(name: str, values: Tensor) -> Any:
    """Numbers in 16 bits, in 32 where they are too large for that."""
    kind: Kind = "float16" if float(values.abs().max()) < _LARGEST else "float32"
    return pack(name, values.cpu().numpy(), kind)

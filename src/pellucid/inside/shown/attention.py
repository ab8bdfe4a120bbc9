"""One head at one query, step by step: Q, K, V, scores, mask, softmax, output, and what it writes.

Axes: T query position, S key position, K head width, D model width.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...model.attention import Attention
from ...model.place import columns, visible
from ...views.packed import Array, Packed
from ...views.packing import pack
from ..run import Run

_NUMBERS = 2**15  # as many are sent in 32 bits: 512 keys of a head 64 wide
_PARTS = ("attention", "cross")
_LARGEST_HALF = 65504.0


def attention(run: Run, layer: int = 0, head: int = 0, part: str = "attention", query: int = -1) -> Packed:
    """What one head computes at one query: the arrays query [K], keys and values [S K], raw (q.k), scores (scaled,
    -inf where a key is hidden), visible and pattern [S], output [K] and write [D].

    `query` and keys are positions of the text (in "cross" attention keys are the source's), padding left out. `raw` is
    of the query and the keys as they are compared; `scores` and `pattern` hold the edits of the run. The meta says
    where this is (`site`), the `scale`, the norm of what is written and of the state that it is added to, what to see
    in a sentence, and, under `softmax`, what scaling does to all queries of this head. Raises ValueError for a layer, a
    head, a part or a position that there is not.
    """
    with torch.no_grad():
        sublayer = _sublayer(run, layer, head, part)
        at, name = range(len(run.columns()))[run.columns().index(run.column(0, query))], sublayer.name
        queries = run.by_position(f"{name}.query")[:, head].double()
        shared = head * sublayer.G // sublayer.H
        keys, values = (_of_keys(run, f"{name}.{what}", part)[:, shared] for what in ("key", "value"))
        seen = _seen(run, sublayer, part)
        scores, pattern = (run.by_position(f"{name}.{what}")[at, head] for what in ("scores", "pattern"))
        output = run.by_position(f"{name}.heads")[at, head]
        write = _write(run, sublayer, head, at, output)
        raw = queries @ keys.double().T
        meta: dict[str, Any] = {
            "layer": layer, "head": head, "part": part, "query": at, "site": name,
            "scale": sublayer.scale, "d_head": sublayer.K, "heads": sublayer.H, "kv_head": shared,
            "kv_heads": sublayer.G, "write_norm": _norm(write), "stream_norm": _norm(_state(run, name)[at]),
            "state": _state_name(run, name), "says": _says(run, part, at, pattern),
            "softmax": _softmax(raw, seen, sublayer.scale) | _squares(queries, keys),
        }  # fmt: skip
        arrays = {"query": queries[at], "raw": raw[at], "scores": scores, "pattern": pattern, "output": output}
        packed = [pack(key, _plain(value), "float32") for key, value in arrays.items()]
        packed += [
            pack("write", _plain(write), "float32"),
            pack("visible", seen[at].cpu().numpy(), "uint8", within=(0, 1)),
        ]
    return Packed(meta, (*packed, _matrix("keys", keys), _matrix("values", values)))


def _sublayer(run: Run, layer: int, head: int, part: str) -> Attention:
    transformer = run.transformer
    config = transformer.config
    parts = _PARTS if config.encoder is not None else _PARTS[:1]
    if part not in parts:
        raise ValueError(f"part must be {' or '.join(parts)} in this model, got {part!r}")
    for name, value, size in (("layer", layer, config.n_layers), ("head", head, config.n_heads)):
        if not 0 <= value < size:
            raise ValueError(f"{name} must lie in 0..{size - 1}, got {value}")
    name = f"{transformer.prefix}{layer}.{part}"
    found = next(each for step in transformer.steps for each in step.parts if each.name == name)
    assert isinstance(found, Attention), "a sublayer of this name is attention"
    return found


def _of_keys(run: Run, site: str, part: str) -> Float[Tensor, "S G K"]:
    """Keys or values, those of a source by its own positions."""
    if part == "attention":
        return run.by_position(site)
    return run[site][0, _keys_of(run, part).columns()]


def _keys_of(run: Run, part: str) -> Run:
    """The run whose tokens are attended to."""
    if part == "attention":
        return run
    assert run.source is not None, "a decoder with an encoder has run on its text"
    return run.source


def _seen(run: Run, sublayer: Attention, part: str) -> Bool[Tensor, "T S"]:
    """Which keys the mask lets each query see, whatever the edits hide."""
    keys = _keys_of(run, part)
    ours, theirs = run.present(0).place, keys.present(0).place
    return visible(sublayer.mask, columns(ours, run.columns()), columns(theirs, keys.columns()))[0]


def _write(run: Run, sublayer: Attention, head: int, at: int, output: Float[Tensor, "K"]) -> Float[Tensor, "D"]:
    """head W_O^h; read whole only where an edit has changed it."""
    site = f"{sublayer.name}.writes"
    return run.by_position(site)[at, head] if site in run.plan.sites() else output @ sublayer.W_O[head].to(output)


def _state_name(run: Run, name: str) -> str:
    """The state of the stream that a sublayer reads and adds to."""
    return next(step.state for step in run.transformer.steps if any(part.name == name for part in step.parts))


def _state(run: Run, name: str) -> Float[Tensor, "T D"]:
    return run.by_position(_state_name(run, name))


def _says(run: Run, part: str, at: int, pattern: Float[Tensor, "S"]) -> str:
    """The strongest keys in a sentence."""
    own, keys = run.tokens()[at], _keys_of(run, part).tokens()
    if not bool(pattern.any()):
        return f"{own} at position {at} attends to nothing: every key is hidden from it."
    best = pattern.topk(min(2, len(pattern)))
    told = [
        f"{share:.0%} to {keys[key]} ({key})"
        for share, key in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
    spread = float(torch.special.entr(pattern.double()).sum().exp())
    rest = f" and {told[1]}" if len(told) > 1 and float(best.values[1]) >= 0.01 else ""
    return f"{own} at position {at} attends {told[0]}{rest}: as spread as {spread:.1f} equal keys."


def _softmax(raw: Float[Tensor, "T S"], seen: Bool[Tensor, "T S"], scale: float) -> dict[str, float]:
    """The lessons' experiment on all pairs that this head may compare: variance of q.k, and the softmax of it.

    Entropy in nats and the largest probability are means over the queries that see at least two keys, without scaling
    and with it. Edits of scores are left out.
    """
    found = {"pairs": float(seen.sum()), "variance": float(raw[seen].var(correction=0)) if bool(seen.any()) else 0.0}
    found["variance_scaled"] = found["variance"] * scale**2
    choosing = seen.sum(-1) > 1
    for name, factor in (("", 1.0), ("_scaled", scale)):
        p = (raw * factor).masked_fill(~seen, -torch.inf)[choosing].softmax(-1)
        entropy, largest = torch.special.entr(p).sum(-1), p.amax(-1)
        found |= {f"{what}{name}": float(each.mean()) if len(p) else 0.0
                  for what, each in (("entropy", entropy), ("largest", largest))}  # fmt: skip
    return found


def _squares(queries: Float[Tensor, "T K"], keys: Float[Tensor, "S K"]) -> dict[str, float]:
    """Mean squares of the components: d_k times both is the variance of q.k where they are independent around 0."""
    return {"query_square": float(queries.square().mean()), "key_square": float(keys.double().square().mean())}


def _norm(value: Tensor) -> float:
    return float(torch.linalg.vector_norm(value.double()))


def _matrix(name: str, values: Float[Tensor, "S K"]) -> Array:
    """Keys or values: in 32 bits as long as they are few, else in 16 where these can say them."""
    few = values.numel() <= _NUMBERS or not bool(values.abs().max() <= _LARGEST_HALF)
    return pack(name, _plain(values), "float32" if few else "float16")


def _plain(value: Tensor) -> Any:
    return value.detach().double().cpu().numpy()

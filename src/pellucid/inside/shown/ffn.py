"""A feed-forward layer at one token: its neurons, the activation that they went through, and the strongest of them."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...model.activation import activate
from ...model.flow import Look
from ...model.place import Place
from ...model.transformer import FeedForward
from ...views.packed import Array, Packed
from ...views.packing import pack
from ..accounting import Spot, written_by
from ..asking import account
from ..ledger import logit_direction
from ..neuron_weights import direct_effects, ffn_of, writes
from ..reading import chain
from ..run import Run

MOST, WORDS, SAMPLES, LEAST = 100, 4, 241, 4.0


def ffn(run: Run, layer: int, position: int = -1, k: int = 8, token: int = -1) -> Packed:
    """The neurons of a layer at one token, the activation's curve, and the k strongest neurons.

    Strength is |value| x norm of W_down's row; with a `token` (its id) it is the size of what a neuron adds to that
    token's logit, norms frozen, as in the ledger by neuron. Each of the k comes with the tokens that its write raises
    and lowers most (its value's sign taken in), by its weights alone; None where the logits are not linear in the
    stream. Arrays are `up`, `neurons` and, where there is one, `gate`; `curve` is the activation at `at`. Raises
    ValueError for a layer, a k, a position or a token that there is not.
    """
    part = ffn_of(run.transformer, layer)
    if not 1 <= k <= MOST:
        raise ValueError(f"k must lie in 1..{MOST}, got {k}")
    if token != -1 and run.transformer.unembed is None:
        raise ValueError("this model makes no logits: neurons cannot be ordered by a token's")
    followed = None if token == -1 else run.id_of(token)
    groups = [part.name] if followed is None else _behind(run, layer)
    return account(run, lambda spot: _shown(spot, part, k, followed), 0, position, groups)


@dataclass(frozen=True)
class _Neurons:
    """The numbers of one token: before the activation (`up`, and `gate` of a gated layer), after it, and their writes.

    `effects` are what each adds to the followed token's logit, where one is followed.
    """

    up: Float[Tensor, "F"]
    gate: Float[Tensor, "F"] | None
    values: Float[Tensor, "F"]
    norms: Float[Tensor, "F"]
    effects: Float[Tensor, "F"] | None

    @property
    def activated(self) -> Float[Tensor, "F"]:
        """What the activation was applied to."""
        return self.up if self.gate is None else self.gate

    @property
    def sizes(self) -> Float[Tensor, "F"]:
        """How much each neuron wrote: |value| x norm."""
        return self.values.abs() * self.norms

    @property
    def strength(self) -> Float[Tensor, "F"]:
        """What the strongest are ordered by."""
        return self.sizes if self.effects is None else self.effects.abs()


def _shown(spot: Spot, part: FeedForward, k: int, token: int | None) -> Packed:
    point, model = spot.point, spot.point.transformer
    read = _read(spot, part)
    everywhere, at = read["neurons"], point.position
    effects = None
    if token is not None:
        groups = written_by(spot, part.name, logit_direction(spot, token, None), "neuron")
        effects = groups[0].amounts
    gate = read["gate"][at] if "gate" in read else None
    here = _Neurons(read["up"][at], gate, everywhere[at], writes(model, part.layer).norm(dim=1), effects)
    curve = _curve(part, here.activated)
    meta = {
        "layer": part.layer,
        "position": spot.position,
        "site": f"{part.name}.neurons",
        "activation": type(part.activation).__name__,
        "gated": gate is not None,
        "token": None if token is None else {"id": token, "text": point.label(token)},
        "strongest": _strongest(spot, part, here, k),
        "counts": _counts(here, everywhere[spot.run.columns()]),
        "update": float(read["update"][at].double().norm()),
        "edited": sorted(name for name in point.edited if name.startswith(f"{part.name}.")),
    }
    shown = {"up": here.up, "neurons": here.values, **({} if gate is None else {"gate": gate})}
    arrays = [pack(name, value.detach().double().cpu().numpy(), "float32") for name, value in shown.items()]
    return Packed(meta, (*arrays, *curve))


def _read(spot: Spot, part: FeedForward) -> dict[str, Float[Tensor, "T _"]]:
    """The layer's sites over the whole text, kept as they pass: all of one run through it."""
    point, kept = spot.point, {}

    def keeper(name: str) -> Look:
        def keep(value: Tensor, _place: Place, _keys: Place | None) -> Tensor:
            kept[name] = value[0]
            return value

        return keep

    names = ("gate", "up", "neurons") if part.gate is not None else ("up", "neurons")
    looks = chain(point.here.looks or {}, {f"{part.name}.{name}": keeper(name) for name in names})
    kept["update"] = point.recording.read(f"{part.name}.update", replace(point.here, looks=looks))[0]
    return kept


def _strongest(spot: Spot, part: FeedForward, here: _Neurons, k: int) -> list[dict[str, Any]]:
    """The k strongest, each with its numbers as they are, and the tokens that its write raises and lowers."""
    order = here.strength.topk(min(k, len(here.values))).indices.tolist()
    words = _words(spot, part, order, here.values)
    found = []
    for neuron, (raised, lowered) in zip(order, words, strict=True):
        numbers = {
            "up": here.up,
            "gate": here.gate,
            "value": here.values,
            "write": here.norms,
            "size": here.sizes,
            "effect": here.effects,
        }
        cells = {name: None if each is None else float(each[neuron]) for name, each in numbers.items()}
        found.append({"neuron": neuron, **cells, "raises": raised, "lowers": lowered})
    return found


def _words(spot: Spot, part: FeedForward, order: list[int], values: Float[Tensor, "F"]) -> list[tuple[Any, Any]]:
    """For each neuron the tokens that its write at this token raises, and those it lowers, most first."""
    model, point = spot.point.transformer, spot.point
    if model.unembed is None or model.head is not None:
        return [(None, None)] * len(order)
    signs = torch.where(values[order] < 0, -1.0, 1.0)[:, None]
    effects = direct_effects(model, part.layer, order) * signs
    count = min(WORDS, effects.shape[1])
    ends = [effects.topk(count, largest=largest).indices.tolist() for largest in (True, False)]
    raised, lowered = ([[point.label(token) for token in ids] for ids in end] for end in ends)
    return list(zip(raised, lowered, strict=True))


def _counts(here: _Neurons, everywhere: Float[Tensor, "T F"]) -> dict[str, Any]:
    """How dense the activity is: neurons above 0 here, and on every token of the text; never above 0; exactly 0.

    `half` is how many neurons, the strongest writers first, make half of the sum of |value| x norm.
    """
    sizes = here.sizes.double().sort(descending=True).values.cumsum(0)
    active = everywhere > 0
    return {
        "neurons": len(here.values),
        "tokens": len(everywhere),
        "active": int((here.values > 0).sum()),
        "zero": int((here.values == 0).sum()),
        "share": float(active.double().mean()),
        "silent": int((~active.any(0)).sum()),
        "always": int(active.all(0).sum()),
        "half": int((sizes < sizes[-1] / 2).sum()) + 1,
    }


def _curve(part: FeedForward, before: Float[Tensor, "F"]) -> tuple[Array, Array]:
    """The model's own activation, sampled from the least to the greatest number it met, and at least from -4 to 4."""
    low, high = (float(end) for end in before.double().aminmax())
    at = torch.linspace(min(low, -LEAST), max(high, LEAST), SAMPLES, dtype=torch.float64)
    return pack("at", at.numpy(), "float32"), pack("curve", activate(part.activation, at).numpy(), "float32")


def _behind(run: Run, layer: int) -> list[str]:
    """The groups of weights that a logit reads a layer's update through."""
    parts = [part.name for step in run.transformer.steps for part in step.parts if part.layer >= layer]
    return [*parts, "final"]

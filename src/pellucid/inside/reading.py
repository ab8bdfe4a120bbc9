"""Recomputing a value: one part of the model is run from the recorded state before it, and stopped at the site."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..model.flow import Pass
from ..model.place import Place, visible
from ..model.transformer import Transformer
from ..text import Tokenizer
from .fingerprint import fingerprint


class _ReachedError(Exception):
    """Carries the value out of the pass, so that nothing after the site is computed."""

    def __init__(self, value: Tensor, keys: Place | None):
        self.value, self.keys = value, keys


def _stop(value: Tensor, _place: Place, keys: Place | None) -> Tensor:
    raise _ReachedError(value, keys)


def state_sites(transformer: Transformer) -> list[str]:
    """The names of the stream's states, first to last."""
    return [*(step.state for step in transformer.steps), f"{len(transformer.blocks)}.stream"]


def group_of(site: str) -> str:
    """The part of the model that a site is computed by: "embed", "3.attention", "3.ffn", "final"; "" for a state."""
    if site.startswith("embed."):
        return "embed"
    if site.startswith("final.") or site == "logits":
        return "final"
    layer, _, rest = site.partition(".")
    return "" if rest.startswith("stream") else f"{layer}.{rest.partition('.')[0]}"


def prints(transformer: Transformer, groups: Iterable[str] | None = None) -> dict[str, Tensor]:
    """A fingerprint of the weights of each group; of all groups when none are named."""
    weights: dict[str, Iterable[Tensor]] = {"embed": transformer.embed.parameters()}
    weights |= {part.name: part.parameters() for step in transformer.steps for part in step.parts}
    weights["final"] = [*transformer.final_norm.parameters(), transformer.W_U]
    return {group: fingerprint(weights[group]) for group in (weights if groups is None else groups) if group}


def read(
    transformer: Transformer, site: str, ids: Int[Tensor, "B T"], states: Sequence[Float[Tensor, "B T D"]], here: Pass
) -> Tensor:
    """The value of a site, from the recorded states. Scores are shown with -inf where the mask hides a key."""
    names = state_sites(transformer)
    if site in names:
        return states[names.index(site)]
    here = replace(here, looks={site: _stop})
    try:
        _run_group(transformer, group_of(site), ids, states, here)
    except _ReachedError as reached:
        if site.endswith(".scores") and reached.keys is not None:
            layer = int(site.partition(".")[0])
            seen = visible(transformer.config.mask(layer), here.place, reached.keys)[:, None]
            return reached.value.masked_fill(~seen, -torch.inf)
        return reached.value
    raise AssertionError(f"the pass never reached {site}")


def _run_group(
    transformer: Transformer, group: str, ids: Tensor, states: Sequence[Float[Tensor, "B T D"]], here: Pass
) -> None:
    if group == "embed":
        transformer.embed(ids, here)
    elif group == "final":
        transformer.logits(states[-1], here)
    for index, step in enumerate(transformer.steps):
        for part in step.parts:
            if part.name == group:
                part(states[index], here)


@dataclass(frozen=True)
class Point:
    """One token of one row of a recorded pass, padding left out: what lenses and ledgers are taken at."""

    transformer: Transformer
    ids: Int[Tensor, "one T"]
    states: tuple[Float[Tensor, "one T D"], ...]
    here: Pass
    position: int
    tokenizer: Tokenizer | None

    def read(self, site: str) -> Tensor:
        """A site's value at this token (axes after B and T; a batch of one position for a state)."""
        return read(self.transformer, site, self.ids, self.states, self.here)[0, self.position]

    def state(self, index: int) -> Float[Tensor, "one one D"]:
        """The stream's state at this token."""
        return self.states[index][:, self.position : self.position + 1]

    @cached_property
    def logits(self) -> Float[Tensor, "V"]:
        """The model's logits after this token."""
        return self.unembed(self.state(-1))

    def unembed(self, state: Float[Tensor, "one one D"]) -> Float[Tensor, "V"]:
        """Final norm and unembedding of any state, with that state's own statistics."""
        return self.transformer.logits(state, self.here)[0, 0]

    def label(self, token: int) -> str:
        """A printable name of a token."""
        return str(token) if self.tokenizer is None else self.tokenizer.labels([token])[0]

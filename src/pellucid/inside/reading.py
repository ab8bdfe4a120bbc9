"""Recomputing a value: one part of the model is run from the recorded state before it, and stopped at the site."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..model.config import Bidirectional, Config
from ..model.flow import Look, Looks, Pass
from ..model.place import Place, column, visible
from ..model.sites import Site, sites
from ..model.transformer import Step, Transformer
from ..text import Tokenizer
from .fingerprint import fingerprint

ENDINGS = ("logits", "pooled")


def chain(first: Looks, then: Looks) -> dict[str, Look]:
    """Looks that see after others: what the first give back is what the others are shown."""
    both = {site: chained([first[site], then[site]]) for site in first.keys() & then.keys()}
    return {**first, **then, **both}


def chained(looks: Sequence[Look]) -> Look:
    """Several looks at one site, one after another."""

    def see(value: Tensor, place: Place, keys: Place | None) -> Tensor:
        for look in looks:
            value = look(value, place, keys)
        return value

    return see if len(looks) > 1 else looks[0]


class _ReachedError(Exception):
    """Carries the value out of the pass, so that nothing after the site is computed."""

    def __init__(self, value: Tensor, keys: Place | None):
        self.value, self.keys = value, keys


def _stop(value: Tensor, _place: Place, keys: Place | None) -> Tensor:
    raise _ReachedError(value, keys)


def all_sites(transformer: Transformer) -> tuple[Site, ...]:
    """The sites of a model; of an encoder by itself too, whose names say that it is one."""
    return _sites(transformer.config, transformer.prefix)


def state_sites(transformer: Transformer) -> list[str]:
    """The names of the stream's states, first to last."""
    return list(_states(transformer.config, transformer.prefix))


@cache
def _sites(config: Config, prefix: str) -> tuple[Site, ...]:
    found = sites(config)
    if config.encoder is not None or not prefix:
        return found
    return tuple(replace(site, name=f"{prefix}{site.name}") for site in found)


@cache
def _states(config: Config, prefix: str) -> tuple[str, ...]:
    names = (site.name for site in _sites(config, prefix) if site.name.startswith(prefix))
    return tuple(name for name in names if name.endswith((".stream", ".stream.mid", ".stream.cross")))


def group_of(transformer: Transformer, site: str) -> str:
    """The part of the model that a site is computed by: "embed", "3.attention", "3.norm", "final"; "" for a state."""
    first, _, rest = site.removeprefix(transformer.prefix).partition(".")
    if first == "embed":
        return "embed"
    if first in ("final", "head", *ENDINGS):
        return "final"
    return "" if rest.startswith("stream") else f"{transformer.prefix}{first}.{rest.partition('.')[0]}"


def prints(transformer: Transformer, groups: Iterable[str] | None = None) -> dict[str, Tensor]:
    """A fingerprint of the weights of each group; of all groups when none are named."""
    embed, ends = transformer.embed, (transformer.final_norm, transformer.head, transformer.unembed)
    parts: dict[str, list[nn.Module | None]] = {"embed": [embed]}
    for step in transformer.steps:
        parts |= {part.name: [part, step.shared] for part in step.parts}
        if step.shared is not None:
            parts[_norm_group(step)] = [step.shared]
    parts["final"] = [*ends, transformer.pooler, transformer.next_sentence]
    found = {}
    for group in filter(None, parts if groups is None else groups):
        weights = [weight for part in parts[group] if part is not None for weight in part.parameters()]
        words = [embed.words] if group == "embed" else [transformer.W_U] if group == "final" else []
        found[group] = fingerprint([*words, *weights])
    return found


def _passes(transformer: Transformer, sites: Iterable[str]) -> list[list[str]]:
    """Sites that one run of one part passes, the last of which it can stop at.

    Who looks at scores, patterns, writes or the scale of a norm has the part compute them by other kernels than it
    takes otherwise, so these are read apart from the rest.
    """
    passes: dict[tuple[str, ...], list[str]] = {}
    for site in sites:
        last = site.rpartition(".")[2]
        alone = last in ("stream", "mid", "cross", "scale", "writes", "next_sentence", *ENDINGS)
        kind = "open" if last in ("scores", "pattern") else site if alone else ""
        passes.setdefault((group_of(transformer, site), kind), []).append(site)
    return list(passes.values())


def _norm_group(step: Step) -> str:
    """The name of the one norm that both parts of a parallel block read through."""
    return step.state.removesuffix("stream") + "norm"


@dataclass(frozen=True)
class Recording:
    """What was recorded of one pass: the input, and the states of the stream."""

    transformer: Transformer
    ids: Int[Tensor, "B T"]
    types: Int[Tensor, "B T"] | None
    states: tuple[Float[Tensor, "B T D"], ...]

    def read(self, site: str, here: Pass) -> Tensor:
        """The value of a site. Scores are shown with -inf where the mask hides a key.

        The pass carries the looks of edits made on the way; the recorded states hold theirs already.
        """
        names = state_sites(self.transformer)
        if site in names:
            return self.states[names.index(site)]
        here = replace(here, looks=chain(here.looks or {}, {site: _stop}))
        try:
            self._run(site, here)
        except _ReachedError as reached:
            return self._masked(site, reached.value, here.place, reached.keys)
        raise AssertionError(f"the pass never reached {site}")

    def several(self, sites: Sequence[str], here: Pass) -> dict[str, Tensor]:
        """The values of sites in the order the data flows, each what `read` gives, in as few passes as that allows."""
        found: dict[str, Tensor] = {}

        def kept(site: str) -> Look:
            def keep(value: Tensor, place: Place, keys: Place | None) -> Tensor:
                found[site] = self._masked(site, value, place, keys)
                return value

            return keep

        for *before, last in _passes(self.transformer, sites):
            looks = chain(here.looks or {}, {site: kept(site) for site in before})
            found[last] = self.read(last, replace(here, looks=looks or None))
        return found

    def _masked(self, site: str, value: Tensor, queries: Place, keys: Place | None) -> Tensor:
        """Scores with -inf where the mask hides a key; any other value as it is."""
        if not site.endswith(".scores") or keys is None:
            return value
        prefix, _, part = site.removesuffix(".scores").rpartition(".")
        layer = int(prefix.rpartition(".")[2])
        mask = Bidirectional() if part == "cross" else self.transformer.config.mask(layer)
        return value.masked_fill(~visible(mask, queries, keys)[:, None], -torch.inf)

    def _run(self, site: str, here: Pass) -> None:
        group = group_of(self.transformer, site)
        if group == "embed":
            self.transformer.embed(self.ids, here, self.types)
        elif group == "final":
            self._end(site.removeprefix(self.transformer.prefix), here)
        for state, step in zip(self.states, self.transformer.steps, strict=False):
            if step.shared is not None and group == _norm_group(step):
                step.source(state, here)
            for part in step.parts:
                if part.name == group:
                    step.close(state, [part(step.source(state, here), here)], here)

    def _end(self, site: str, here: Pass) -> None:
        if site == "head.next_sentence":
            self.transformer.next_sentence_logits(self.states[-1], here)
        elif site == "pooled":
            self.transformer.pooled(self.states[-1], here)
        elif site.startswith("final."):
            self.transformer.normed(self.states[-1], here)
        else:
            self.transformer.logits(self.states[-1], here)

    def row(self, row: int) -> "Recording":
        """One row of a batch, still as a batch."""
        types = None if self.types is None else self.types[row : row + 1]
        states = tuple(state[row : row + 1] for state in self.states)
        return Recording(self.transformer, self.ids[row : row + 1], types, states)


@dataclass(frozen=True)
class Point:
    """One token of one row of a recorded pass, padding left out: what lenses and ledgers are taken at."""

    recording: Recording
    here: Pass
    position: int
    tokenizer: Tokenizer | None
    edited: frozenset[str] = frozenset()

    @property
    def transformer(self) -> Transformer:
        """The model that ran."""
        return self.recording.transformer

    def read(self, site: str) -> Tensor:
        """A site's value at this token (axes after B and T; a batch of one position for a state)."""
        return self.recording.read(site, self.here)[0, self.position]

    def state(self, index: int) -> Float[Tensor, "one one D"]:
        """The stream's state at this token."""
        return self.recording.states[index][:, self.position : self.position + 1]

    def computed(self, index: int) -> Float[Tensor, "D"]:
        """What a state would have been from the one before it, without an edit of the state itself."""
        if index == 0:
            return self.transformer.embed(self.recording.ids, self.here, self.recording.types)[0, self.position]
        step, before = self.transformer.steps[index - 1], self.recording.states[index - 1]
        source = step.source(before, self.here)
        return step.close(before, [part(source, self.here) for part in step.parts], self.here)[0, self.position]

    @cached_property
    def logits(self) -> Float[Tensor, "V"]:
        """The model's logits at this token."""
        return self.unembed(self.state(-1))

    def unembed(self, state: Float[Tensor, "one one D"]) -> Float[Tensor, "V"]:
        """Final norm, head and unembedding of any state, with that state's own statistics."""
        here = replace(self.here, place=column(self.here.place, self.position))
        return self.transformer.logits(state, here)[0, 0]

    def label(self, token: int) -> str:
        """A printable name of a token."""
        return str(token) if self.tokenizer is None else self.tokenizer.labels([token])[0]

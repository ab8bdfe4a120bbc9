"""The most telling picture of each view, by matplotlib, for where no page can be shown."""

from collections.abc import Callable
from functools import partial

import torch

from ...views.curves import curves
from ...views.figures import bars, heat_map
from ...views.mosaic import mosaic
from ...views.view import View
from ..asking import ask
from ..lens import top
from ..reading import state_sites
from ..run import Run
from .ffn import ffn
from .wanted import Chosen

MOST = 16  # bars


def glance(run: Run, chosen: Chosen, title: str) -> View:
    """The most probable next tokens; without a head, how long the last state is at each token."""
    if run.transformer.unembed is None:
        norms = run.states[-1][0, run.columns()].double().norm(dim=-1).tolist()
        return bars(_numbered(run), norms, title, "length of the last state")
    vocabulary = run.transformer.config.vocab_size
    table = ask(run, partial(top, k=min(MOST, vocabulary)), 0, chosen.position, ["final"])
    return bars([str(token) for token in table.column("token")], table.column("probability"), title, "probability")


def stream(run: Run, chosen: Chosen, title: str) -> View:
    """How far each step moved the stream, at each token: by orders of magnitude, for a few steps are far longer."""
    at = run.columns()
    states = torch.stack([state[0, at].double() for state in run.states])
    moved = (states[1:] - states[:-1]).norm(dim=-1)
    names = state_sites(run.transformer)[1:]
    said = ("state", "token", "how far the step to it went")
    return heat_map(moved.tolist(), names, _numbered(run), title, said, logarithmic=True)


def attention(run: Run, chosen: Chosen, title: str) -> View:
    """The pattern of the chosen head."""
    site = f"{run.transformer.prefix}{chosen.layer}.{chosen.part}.pattern"
    pattern = run.by_position(site)[:, chosen.head].double()
    keys = run.source if chosen.part == "cross" and run.source is not None else run
    title = f"{site}, head {chosen.head}: {title}"
    return heat_map(pattern.tolist(), _numbered(run), _numbered(keys), title, ("query", "key", "attention"))


def heads(run: Run, chosen: Chosen, title: str) -> View:
    """The patterns of all heads."""
    config, prefix = run.transformer.config, run.transformer.prefix
    sites = [f"{prefix}{layer}.{chosen.part}.pattern" for layer in range(config.n_layers)]
    patterns = [run.by_position(site).movedim(0, 1).double().cpu().numpy() for site in sites]
    names = ("layer", "head", "attention: queries downwards, keys to the right")
    return mosaic(patterns, [*map(str, range(config.n_layers))], [*map(str, range(config.n_heads))], title, names)


def neurons(run: Run, chosen: Chosen, title: str) -> View:
    """The strongest neurons of the chosen layer at the chosen token."""
    found = ffn(run, chosen.layer, chosen.position, k=min(MOST, run.transformer.config.d_ff)).meta["strongest"]
    labels = [str(one["neuron"]) for one in found]
    return bars(labels, [one["value"] for one in found], f"layer {chosen.layer}, {title}", "value of the neuron")


def whole_pass(run: Run, chosen: Chosen, title: str) -> View:
    """How long the stream is at the chosen token, state by state."""
    column = run.column(0, chosen.position)
    norms = [float(state[0, column].double().norm()) for state in run.states]
    return curves(list(range(len(norms))), {"stream": norms}, title, ("state", "length of the stream"))


DRAWN: dict[str, Callable[[Run, Chosen, str], View]] = {
    "glance": glance,
    "stream": stream,
    "attention": attention,
    "heads": heads,
    "ffn": neurons,
    "pass": whole_pass,
}


def _numbered(run: Run) -> list[str]:
    return [f"{position} {token}" for position, token in enumerate(run.tokens())]

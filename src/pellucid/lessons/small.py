"""The small random models that lessons are shown on where none is given."""

from typing import Any

import torch

from ..inside.trace import Trace, trace
from ..model.config import Config, Init
from ..model.transformer import Transformer

LENGTH = 12


def random_model(seed: int = 0, **changes: Any) -> Transformer:
    """A pre-norm model in fp64: 4 blocks of width 64 with 4 heads, 50 tokens. Nobody else's random numbers move."""
    sizes = {"vocab_size": 50, "context_length": 64, "n_layers": 4, "d_model": 64, "n_heads": 4, "init": Init(0.2)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transformer = Transformer(Config(**(sizes | changes)))
    return transformer.double().eval().requires_grad_(False)


def random_ids(rows: int = 1, columns: int = LENGTH, seed: int = 1, vocab: int = 50) -> torch.Tensor:
    """Random token ids, rows x columns."""
    return torch.randint(0, vocab, (rows, columns), generator=torch.Generator().manual_seed(seed))


def random_trace(seed: int = 1) -> Trace:
    """That model on 12 random tokens."""
    return trace(random_model(), random_ids(seed=seed))


def site(trace: Trace, name: str) -> str:
    """A site's name in this model: that of an encoder begins with what it is."""
    return f"{trace.transformer.prefix}{name}"

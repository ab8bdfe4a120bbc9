"""The hand-built induction circuit on a text that repeats, and where the answer to "what comes next" must come from."""

import torch

from pellucid.inside.circuit_by_hand import START, induction_circuit
from pellucid.inside.trace import Trace, trace

N = 12


def repeated() -> tuple[Trace, torch.Tensor, int, int]:
    """Its trace, the ids, a position of the second copy, and the position that the next token is copied from."""
    draw = torch.Generator().manual_seed(3)
    half = torch.randperm(31, generator=draw)[:N] + 1
    ids = torch.cat((torch.tensor([START]), half, half))[None]
    return trace(induction_circuit().double(), ids), ids, N + 7, 8

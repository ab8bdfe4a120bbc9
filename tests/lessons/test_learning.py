"""Training from random weights: the loss begins at that of guessing and falls until the verse is known."""

import math

import pytest
import torch

from pellucid.lessons.learning import VERSE, learning


@pytest.mark.slow
def test_cross_entropy_falls_from_guessing_to_knowing_the_verse():
    torch.manual_seed(2)
    expected = torch.rand(1)
    torch.manual_seed(2)
    curve, written = learning().tables
    assert torch.equal(torch.rand(1), expected)
    losses, guess = curve.column("loss (nats)"), math.log(len(set(VERSE)))
    assert abs(losses[0] - guess) < 0.1
    assert losses[-1] < 0.5
    assert curve.column("as if among")[0] == math.exp(losses[0])
    ((given, made, verse),) = written.rows
    assert given + verse == VERSE[:32]
    assert made == verse

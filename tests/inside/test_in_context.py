"""Losses by position, and what is made of them."""

import math

import pytest
import torch

from pellucid.inside.circuit_by_hand import INDUCTION, PREVIOUS, START, induction_circuit
from pellucid.inside.in_context import in_context_score, induction_loss, token_losses
from pellucid.model.config import Bidirectional
from tiny import random_ids, tiny_gpt2


@pytest.mark.parametrize("side", ["left", "right"])
def test_losses_stand_at_their_positions_whatever_the_padding(side):
    model, ids = tiny_gpt2(), random_ids(2, 7)
    mask = torch.ones(2, 7, dtype=torch.long)
    columns = slice(2, 7) if side == "left" else slice(0, 5)
    mask[1] = 0
    mask[1, columns] = 1
    losses = token_losses(model, ids, mask)
    for row, text in ((0, ids[0]), (1, ids[1, columns])):
        chances = model(text[None])[0].softmax(-1)
        expected = [-math.log(float(chances[t - 1, text[t]])) for t in range(1, len(text))]
        assert losses[row, 1 : len(text)].tolist() == pytest.approx(expected, abs=1e-9)
        assert bool(losses[row, 0].isnan())
        assert bool(losses[row, len(text) :].isnan().all())


def test_the_in_context_score_is_a_late_loss_minus_an_early_one():
    losses = torch.tensor([[math.nan, 5.0, 4.0, 1.0], [math.nan, 3.0, 2.0, 1.0], [math.nan, 9.0, 9.0, math.nan]])
    assert in_context_score(losses, late=3, early=1) == pytest.approx((1 - 5 + 1 - 3) / 2)
    for late, early in ((4, 1), (1, 1), (2, 0)):
        with pytest.raises(ValueError, match="1 <= early < late"):
            in_context_score(losses, late, early)


def test_the_induction_loss_starts_at_the_second_token_of_the_second_copy():
    losses = torch.arange(9.0)[None]  # start, then 4 + 4 tokens: the second copy is 5..8, counted from 6
    assert induction_loss(losses, 4) == pytest.approx((6 + 7 + 8) / 3)
    assert induction_loss(losses, 4, start=0) == pytest.approx((5 + 6 + 7) / 3)
    with pytest.raises(ValueError, match="two copies of 5 tokens from 1 on do not fit in 9 positions"):
        induction_loss(losses, 5)


def test_without_its_heads_the_circuit_can_only_guess():
    model = induction_circuit()
    r = torch.arange(1, 26)
    ids = torch.cat((torch.tensor([START]), r, r))[None]
    assert induction_loss(token_losses(model, ids), 25) < 1e-6

    def zero(head):
        return lambda value, _place, _keys: value.index_fill(2, torch.tensor([head]), 0.0)

    for layer, head in (PREVIOUS, INDUCTION):
        losses = token_losses(model, ids, looks={f"{layer}.attention.heads": zero(head)})
        assert induction_loss(losses, 25) == pytest.approx(math.log(32), abs=1e-6)


def test_a_model_that_sees_both_ways_is_refused():
    with pytest.raises(ValueError, match="see later ones"):
        token_losses(tiny_gpt2(masks=(Bidirectional(),)), random_ids(1, 4))

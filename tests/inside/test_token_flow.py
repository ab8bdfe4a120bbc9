"""What flows from token to token, against its formulas."""

import pytest
import torch
from hypothesis import given, settings

from pellucid.inside.circuit_by_hand import START, induction_circuit
from pellucid.inside.token_flow import EPSILON, contributions, rollout, value_norms
from pellucid.inside.trace import trace
from pellucid.model.config import PostNorm
from tiny import build, configs, random_ids, tiny_gpt2, traced

MASK = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])


@settings(max_examples=20)
@given(configs())
def test_flows_are_their_formulas(config):
    model, ids = build(config), random_ids(2, 6)
    found = traced(model, ids, MASK)
    rolled = torch.eye(6).double().expand(2, 6, 6)
    for layer in range(config.n_layers):
        site = f"{model.prefix}{layer}.attention"
        pattern, value = found[f"{site}.pattern"], found[f"{site}.value"]
        attention = model.blocks[layer].attention
        moved = torch.stack(
            [value[:, :, h * attention.G // attention.H] @ attention.W_O[h] for h in range(attention.H)], dim=1
        )
        torch.testing.assert_close(value_norms(found, layer), pattern * moved.norm(dim=-1)[:, :, None])
        mixed = (pattern.mean(1) + torch.eye(6)) / 2
        mixed[1, :2] = torch.eye(6).double()[:2]
        rolled = mixed @ rolled
        if isinstance(config.block, PostNorm):
            with pytest.raises(ValueError, match="post-norm"):
                contributions(found, layer)
            continue
        shares = contributions(found, layer)
        x, update = found[f"{model.prefix}{layer}.stream"], found[f"{site}.update"]
        for row, q in MASK.nonzero().tolist():
            y = x[row, q] + update[row, q]
            near = []
            for k in range(6):
                part = sum(pattern[row, h, q, k] * moved[row, h, k] for h in range(attention.H))
                if k == q:
                    part = part + x[row, q] + (0 if attention.out.bias is None else attention.out.bias)
                seen = float(pattern[row, :, q, k].sum()) > 0
                near.append(max(EPSILON, float(y.abs().sum() - (y - part).abs().sum())) if seen else 0.0)
            expected = torch.tensor(near, dtype=torch.float64) / sum(near)
            torch.testing.assert_close(shares[row, q], expected, atol=1e-9, rtol=1e-9)
        assert float(shares[1, :2].abs().max()) == 0.0
    torch.testing.assert_close(rollout(found), rolled)
    torch.testing.assert_close(rollout(found).sum(-1), torch.ones(2, 6, dtype=torch.float64))


def test_the_circuits_token_flows_from_one_before_to_where_it_is_copied():
    r = torch.arange(1, 6)
    found = trace(induction_circuit().double(), torch.cat((torch.tensor([START]), r, r))[None])
    rolled = rollout(found)[0]
    for q in range(6, 11):
        after = q - 4  # the token after the earlier occurrence; half of the heads attend to it, half evenly to all
        assert int(rolled[q, 1:q].argmax()) + 1 == after
    shares = contributions(found, 0)[0]
    for q in range(2, 11):
        others = shares[q].clone()
        others[q] = 0.0
        assert int(others.argmax()) == q - 1


def test_a_layer_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"0\.\.1, got 2"):
        value_norms(trace(tiny_gpt2(), random_ids(1, 4)), 2)

"""Attention's masks and numerics, by the public faults that they are known for."""

import torch

from pellucid.model.config import Causal, Config
from pellucid.model.flow import Pass
from pellucid.model.place import Place, place_of, visible
from pellucid.model.transformer import Attention
from tiny import tiny_gpt2


def bare_attention(d_head: int = 2, heads: int = 1, scale: float | None = None) -> Attention:
    scales = () if scale is None else (scale,)
    config = Config(4, 16, 1, heads * d_head, heads, d_head=d_head, attention_scales=scales)
    return Attention(config, 0).double().requires_grad_(False)


def attend(attention, query, key, value, place, looks=None):
    """Fused and open, from [T, K] queries, keys and values of one head."""
    q, k, v = (x[None, :, None].double() for x in (query, key, value))
    here = Pass(place, looks=looks)
    return attention.fused(q, k, v, place, here)[0, :, 0], attention.open(q, k, v, place, here)[0, :, 0]


def test_att_1_a_query_that_may_see_nothing_gives_zeros():
    eye, seen = torch.eye(2), {}
    place = Place(torch.tensor([[0, 0]]), torch.tensor([[False, True]]), 1, 1)
    looks = {"0.attention.pattern": lambda value, _p, _k: seen.setdefault("pattern", value)}
    for heads in attend(bare_attention(), eye, eye, eye, place, looks):
        assert heads[0].tolist() == [0.0, 0.0]
    assert seen["pattern"][0, 0, 0].tolist() == [0.0, 0.0]
    # The reported numbers: the first query sees both keys, the second none.
    scores = torch.tensor([[1.0, 0.0]], dtype=torch.float64) / 2**0.5
    torch.testing.assert_close(scores.softmax(-1)[0], torch.tensor([0.669762, 0.330238]).double(), atol=1e-6, rtol=0)


def test_att_1_gradients_stay_finite():
    model = tiny_gpt2().requires_grad_(True)
    ids, mask = torch.tensor([[0, 0, 9], [5, 6, 7]]), torch.tensor([[0, 0, 1], [1, 1, 1]])
    for looks in (None, {"0.attention.pattern": lambda value, _p, _k: value}):
        model.zero_grad()
        model(ids, mask, looks).square().sum().backward()
        assert all(torch.isfinite(weight.grad).all() for weight in model.parameters())


def test_att_2_no_score_is_low_enough_to_lose_to_the_mask():
    allowed = [-110208.0547, -110189.8125, -110206.5234, -110208.4531, -110192.6016]
    attention = bare_attention(8, scale=1.0)
    query = torch.zeros(8, 8, dtype=torch.float64)
    query[4, :5] = torch.tensor(allowed, dtype=torch.float64)
    place = place_of((1, 8), None, query.device)
    expected = torch.tensor([1.1e-8, 0.942082, 5.2e-8, 7.6e-9, 0.057918, 0, 0, 0], dtype=torch.float64)
    for heads in attend(attention, query, torch.eye(8), torch.eye(8), place):
        torch.testing.assert_close(heads[4], expected, atol=2e-5, rtol=0)
        assert heads[4, 5:].tolist() == [0.0, 0.0, 0.0]
    attention = bare_attention(4, scale=1.0)
    query = torch.zeros(4, 4, dtype=torch.float64)
    query[0, 0] = -15258.98
    for heads in attend(attention, query, torch.eye(4), torch.eye(4), place_of((1, 4), None, query.device)):
        assert heads[0].tolist() == [1.0, 0.0, 0.0, 0.0]


def test_att_3_padding_and_causal_mask_on_one_key_stay_finite_in_half_precision():
    for dtype in (torch.float16, torch.bfloat16):
        model = tiny_gpt2(torch.float32, n_layers=1).to(dtype)
        ids, mask = torch.tensor([[0, 0, 9, 10], [5, 6, 7, 8]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
        for looks in (None, {"0.attention.pattern": lambda value, _p, _k: value}):
            assert torch.isfinite(model(ids, mask, looks)).all()


def test_att_4_a_true_in_the_mask_means_may_attend():
    zero, value = torch.zeros(3, 1), torch.tensor([[1.0], [2.0], [4.0]])
    place = place_of((1, 3), None, zero.device)
    expected = torch.tensor([1, 1.5, 7 / 3], dtype=torch.float64)
    for heads in attend(bare_attention(1), zero, zero, value, place):
        torch.testing.assert_close(heads[:, 0], expected, atol=1e-12, rtol=0)
    assert visible(Causal(), place, place).tolist() == [[[True, False, False], [True, True, False], [True, True, True]]]

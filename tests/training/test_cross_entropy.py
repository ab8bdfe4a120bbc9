"""Cross-entropy in tiles against torch's own."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.training.cross_entropy import Unembedded, cross_entropy, log_probabilities

N, D, V = 130, 6, 37
TILES = (1, 64 * 5, 64 * 37, 100 * 37)  # the vocabulary cut into single tokens and into eights; rows cut; more rows


def drawn(seed=0, bias=True, dtype=torch.float64):
    torch.manual_seed(seed)
    x, weight = torch.randn(N, D, dtype=dtype), torch.randn(V, D, dtype=dtype)
    b = torch.randn(V, dtype=dtype) if bias else None
    leaves = [leaf.requires_grad_() for leaf in (x, weight, b) if leaf is not None]
    return x, weight, b, torch.randint(0, V, (N,)), leaves


def plain(x, out, targets, smoothing):
    logits = F.linear(x, out.weight, out.bias) * out.scale
    return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)


@settings(max_examples=40)
@given(
    st.sampled_from(TILES), st.sampled_from([0.0, 0.1]), st.booleans(), st.sampled_from([1.0, 0.3]), st.integers(0, 9)
)
def test_loss_and_gradients_are_those_of_torch(tile, smoothing, bias, scale, seed):
    x, weight, b, targets, leaves = drawn(seed, bias)
    loss = cross_entropy(x, Unembedded(weight, b, scale), targets, smoothing, tile)
    expected = plain(x, Unembedded(weight, b, scale), targets, smoothing)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    ours, theirs = torch.autograd.grad(0.5 * loss, leaves), torch.autograd.grad(0.5 * expected, leaves)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)


def test_extreme_logits_stay_finite():
    x, weight, b, targets, leaves = drawn()
    out = Unembedded(weight * 1e4, b)
    loss, expected = cross_entropy(x, out, targets, 0.0, 64), plain(x, out, targets, 0.0)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    grads = torch.autograd.grad(loss, leaves, retain_graph=True)
    assert all(torch.allclose(*pair) for pair in zip(grads, torch.autograd.grad(expected, leaves), strict=True))


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_what_needs_no_gradient_gets_none(frozen):
    x, weight, b, targets, leaves = drawn()
    leaves[frozen].requires_grad_(False)
    rest = [leaf for leaf in leaves if leaf.requires_grad]
    loss, expected = (f(x, Unembedded(weight, b), targets, 0.0) for f in (small, plain))
    for one, other in zip(torch.autograd.grad(loss, rest), torch.autograd.grad(expected, rest), strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        assert not small(x, Unembedded(weight, b), targets, 0.0).requires_grad


def small(x, out, targets, smoothing):
    return cross_entropy(x, out, targets, smoothing, tile=64 * 5)


def test_a_tied_matrix_gets_both_gradients():
    _, weight, _, targets, _ = drawn()
    ids = torch.randint(0, V, (N,))
    found = []
    for loss in (small, plain):
        found.append(torch.autograd.grad(loss(weight[ids].sin(), Unembedded(weight), targets, 0.1), [weight])[0])
    assert torch.allclose(*found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("autocast", [True, False])
def test_in_bfloat16_it_is_as_near_as_the_whole(autocast):
    x, weight, b, targets, leaves = drawn(dtype=torch.float32)
    exact = torch.autograd.grad(plain(x, Unembedded(weight, b), targets, 0.0), leaves)
    if not autocast:
        x, weight, b = leaves = [leaf.detach().bfloat16().requires_grad_() for leaf in leaves]
    errors = []
    for tile in (1 << 30, 64 * 5):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = cross_entropy(x, Unembedded(weight, b), targets, 0.0, tile)
        assert loss.dtype == torch.float32
        grads = torch.autograd.grad(loss, leaves)
        assert [grad.dtype for grad in grads] == [leaf.dtype for leaf in leaves]
        errors.append(max((grad - true).norm() / true.norm() for grad, true in zip(grads, exact, strict=True)))
    assert errors[1] <= 1.25 * errors[0] < 0.03


def test_trn_2_no_target_is_no_loss():
    x, weight, b, _, leaves = drawn()
    loss = cross_entropy(x[:0], Unembedded(weight, b), torch.zeros(0, dtype=torch.int64))
    assert loss.item() == 0.0
    assert all(grad.abs().max() == 0 for grad in torch.autograd.grad(loss, leaves))


def test_gradients_are_handed_on_once():
    x, weight, b, targets, leaves = drawn()
    loss = small(x, Unembedded(weight, b), targets, 0.0)
    torch.autograd.grad(loss, leaves, retain_graph=True)
    with pytest.raises(RuntimeError, match="make the loss again"):
        torch.autograd.grad(loss, leaves)


def test_no_tensor_has_the_size_of_all_logits(monkeypatch):
    """Every result of torch's operations is weighed: with tiles none is as large as N x V."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for each in result if isinstance(result, tuple | list) else [result]:
                if isinstance(each, torch.Tensor):
                    self.size = max(self.size, each.numel())
            return result

    x, weight, b, targets, _ = drawn()
    sizes = {}
    for tile in (1 << 30, 64 * V, 64 * 5):
        with Largest() as seen:
            cross_entropy(x, Unembedded(weight, b), targets, 0.1, tile).backward()
        sizes[tile] = seen.size
    assert sizes == {1 << 30: N * V, 64 * V: 64 * V, 64 * 5: N * D}


@pytest.mark.parametrize("tile", [1, 64 * 5, 1 << 20])
def test_log_probabilities_and_the_most_probable(tile):
    x, weight, b, targets, _ = drawn()
    logits = 0.3 * F.linear(x, weight, b)
    targets[::2] = logits.argmax(1)[::2]
    found, best = log_probabilities(x, Unembedded(weight, b, 0.3), targets, tile)
    assert torch.allclose(found, logits.log_softmax(1).gather(1, targets[:, None])[:, 0], atol=1e-12)
    assert torch.equal(best, logits.argmax(1) == targets)

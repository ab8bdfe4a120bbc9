"""Probes against their textbook forms, on values whose label is known to be there or known not to be."""

import pytest
import torch
import torch.nn.functional as F

from pellucid.inside.errors import LedgerError, SiteError
from pellucid.inside.probes import Fit, probe, values_at
from pellucid.inside.trace import trace
from tiny import random_ids, tiny_gpt2

METHODS = ("ridge", "logistic", "difference")


def clouds(n: int = 120, d: int = 6, labels: int = 2, apart: float = 4.0, seed: int = 0):
    """Values around one centre for each label, far from 0, and the labels."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(labels, d, generator=draw, dtype=torch.float64)
    y = torch.arange(n) % labels
    return 10 + apart * centres[y] + torch.randn(n, d, generator=draw, dtype=torch.float64), y


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("labels", [2, 4])
def test_labels_that_are_there_are_found_on_examples_held_out(method, labels):
    x, y = clouds(labels=labels)
    found = probe(x, (y + 3).tolist(), "1.stream", Fit(method, held_out=0.25, nulls=6))
    assert (found.n, found.fitted) == (30, 90)
    assert found.accuracy > 0.95
    assert abs(found.null - 1 / labels) < 0.2
    assert found.labels == tuple(range(3, 3 + labels))
    assert float((found.says(x) == y + 3).double().mean()) > 0.95


@pytest.mark.parametrize("method", METHODS)
def test_labels_that_are_not_there_score_as_chance(method):
    x, _ = clouds(n=200)
    y = torch.randint(0, 2, (200,), generator=torch.Generator().manual_seed(5))
    found = probe(x, y, fit=Fit(method, held_out=0.5, nulls=8))
    assert abs(found.accuracy - found.null) < 4 * max(found.null_sd, 0.05)


@pytest.mark.parametrize("shape", [(40, 6), (20, 30)])
def test_ridge_is_the_least_squares_of_the_longer_system(shape):
    """min |Xw + b - Y|^2 + penalty |w|^2, the penalty as rows of their own, the intercept as a column without one."""
    x, y = clouds(*shape)
    fit = Fit("ridge", penalty=0.3, held_out=0.5, nulls=1, seed=2)
    found = probe(x, y, fit=fit)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(2))
    kept = torch.ones(len(x), dtype=torch.bool)
    kept[order[: len(x) // 2]] = False
    inside, targets = x[kept], F.one_hot(y[kept], 2).double()
    n, d = inside.shape
    variance = (inside - inside.mean(0)).square().mean()
    rows = torch.cat((torch.ones(n, 1, dtype=torch.float64), inside), 1)
    extra = torch.cat((torch.zeros(d, 1), torch.eye(d)), 1).double() * (0.3 * n * variance).sqrt()
    both = torch.cat((rows, extra)), torch.cat((targets, torch.zeros(d, 2, dtype=torch.float64)))
    solved = torch.linalg.lstsq(*both, driver="gelsd").solution
    torch.testing.assert_close(found.bias, solved[0], atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(found.weights, solved[1:].T, atol=1e-8, rtol=1e-8)
    assert found.n == len(x) - n


def test_the_logistic_fit_is_where_its_gradient_vanishes():
    x, y = clouds(n=80, apart=0.7, labels=3)
    fit = Fit("logistic", penalty=0.1, held_out=0.25, nulls=1)
    found = probe(x, y, fit=fit, groups=list(range(80)))
    order = torch.randperm(80, generator=torch.Generator().manual_seed(0))
    inside, labels = x[order[20:]], y[order[20:]]
    variance = (inside - inside.mean(0)).square().mean()
    weights, bias = found.weights.clone().requires_grad_(), found.bias.clone().requires_grad_()
    loss = F.cross_entropy(inside @ weights.T + bias, labels) + 0.05 * variance * weights.square().sum()
    for slope in torch.autograd.grad(loss, (weights, bias)):
        assert float(slope.abs().max()) < 1e-5


def test_the_difference_of_means_is_just_that():
    x, y = clouds(n=40, apart=1.0)
    found = probe(x, y, fit=Fit("difference", held_out=0.25))
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    inside, labels = x[order[10:]], y[order[10:]]
    means = [inside[labels == label].mean(0) for label in (0, 1)]
    torch.testing.assert_close(found.direction, means[1] - means[0])
    nearest = torch.stack([(x - mean).norm(dim=1) for mean in means], 1).argmin(1)
    assert torch.equal(found.says(x), nearest)


def test_the_tokens_of_a_text_stay_together():
    """Every text is a label of its own kind of noise: known texts would give the label away, new ones do not."""
    draw = torch.Generator().manual_seed(1)
    texts = torch.randn(20, 8, generator=draw, dtype=torch.float64)
    groups = torch.arange(200) // 10
    x = texts[groups] + 0.01 * torch.randn(200, 8, generator=draw, dtype=torch.float64)
    y = torch.randint(0, 2, (20,), generator=draw)[groups]
    apart = probe(x, y, fit=Fit("ridge", penalty=1e-6), groups=groups.tolist())
    assert (apart.n, apart.fitted) == (50, 150)
    together = probe(x, y, fit=Fit("ridge", penalty=1e-6))
    assert together.accuracy > apart.accuracy


def test_the_same_seed_gives_the_same_probe():
    x, y = clouds(apart=0.5)
    one, two, other = (probe(x, y, fit=Fit("logistic", seed=seed, nulls=3)) for seed in (3, 3, 4))
    assert one.to_json() == two.to_json()
    assert one.to_json() != other.to_json()


def test_a_token_that_a_text_holds_is_read_off_its_embedding():
    model, ids = tiny_gpt2(), random_ids(60, 4)
    found = trace(model, ids)
    values = values_at(found, "0.stream", [[1, 2]] * 60)
    assert torch.equal(values[5], found["0.stream"][2, 2])
    labels = (ids[:, 1:3].flatten() < 25).long()
    groups = [row for row in range(60) for _ in range(2)]
    read = probe(values, labels, "0.stream", Fit("logistic", held_out=0.4, nulls=4), groups)
    assert read.accuracy > read.null + 0.2


def test_the_direction_goes_into_a_ledger_and_into_edits():
    model, ids = tiny_gpt2(), random_ids(30, 4)
    found = trace(model, ids)
    last = probe(values_at(found, "2.stream", [-1] * 30), ids[:, -1] % 2, "2.stream")
    ledger = last.ledger(found, row=3, by="head")
    stream = found["2.stream"][3, -1]
    assert ledger.value == pytest.approx(float(stream @ last.direction))
    assert abs(ledger.remainder) < 1e-10
    edited = found.edit(last.edit(5.0, position=3))
    assert float((edited["2.stream"][3, 3] - stream) @ last.direction) == pytest.approx(
        5 * float(last.direction.norm())
    )
    early = probe(values_at(found, "1.stream", [-1] * 30), ids[:, -1] % 2, "1.stream")
    with pytest.raises(LedgerError, match=r"fit the probe on 2\.stream"):
        early.ledger(found)
    heads = values_at(found, "0.attention.heads", [0] * 30)
    assert heads.shape == (30, 32)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda x, y: probe(x, y[:-1]), "one label"),
        (lambda x, y: probe(x, y.double()), "one label"),
        (lambda x, y: probe(x, torch.zeros_like(y)), "2 labels"),
        (lambda x, y: probe(x[:3], y[:3]), "at least 4"),
        (lambda x, y: probe(x / 0, y), "finite"),
        (lambda x, y: probe(x, y, groups=[0] * len(y)), "1 groups"),
        (lambda x, y: probe(x, [0] * (len(y) - 1) + [1], fit=Fit(seed=0, held_out=0.9)), "not all of the labels"),
        (lambda x, y: Fit("ridge", penalty=0.0), "penalty"),
        (lambda x, y: Fit("ridge", held_out=1.0), "held_out"),
        (lambda x, y: probe(*clouds(labels=3)).direction, "one of two labels"),
    ],
)
def test_what_makes_no_probe(ask, said):
    with pytest.raises(ValueError, match=said):
        ask(*clouds())


def test_what_has_no_vector_at_each_position():
    found = trace(tiny_gpt2(), random_ids(2, 4))
    for site in ("0.attention.pattern", "final.scale"):
        with pytest.raises(SiteError, match="a vector at each position"):
            values_at(found, site, [0, 0])
    with pytest.raises(ValueError, match="2 rows, got positions for 1"):
        values_at(found, "1.stream", [0])

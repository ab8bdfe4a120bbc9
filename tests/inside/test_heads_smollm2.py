"""The induction circuit of a real model: by score against its null, by composition of weights, and by ablation."""

import statistics

import pytest
import torch

import pellucid
from pellucid.inside.composition import composition
from pellucid.inside.head_scores import measure
from pellucid.inside.head_targets import first_token, induction, previous_token
from pellucid.inside.head_texts import PROSE, begun, pool_of, random_rows, repeated
from pellucid.inside.in_context import induction_loss, token_losses
from pellucid.inside.trace import trace

pytestmark = pytest.mark.slow

PREVIOUS = [(16, 0), (17, 8), (19, 3)]


@pytest.fixture(scope="module")
def model(smollm2_path):
    return pellucid.load(smollm2_path)


def rows(model, seed: int) -> torch.Tensor:
    return random_rows(pool_of(49152, model.tokenizer, 1), 50, 3, seed)


@pytest.fixture(scope="module")
def inductive(model):
    """The induction scores, and those of the same keys in texts that repeat nothing."""
    found = trace(model.transformer, repeated(rows(model, 0)[:, :25], 2, 1))
    control = trace(model.transformer, begun(rows(model, 0), 1))
    target = induction(found)
    return measure(found, [target])[0], measure(control, [target])[0]


def strongest(scores, k: int) -> list[tuple[int, int]]:
    return [tuple(row[:2]) for row in scores.top(k).rows]


def without(heads):
    by_layer = {}
    for layer, head in heads:
        by_layer.setdefault(layer, []).append(head)

    def zero(some):
        return lambda value, _place, _keys: value.index_fill(2, torch.tensor(some), 0.0)

    return {f"{layer}.attention.heads": zero(some) for layer, some in by_layer.items()}


def test_induction_heads_stand_far_above_their_null(inductive):
    scores, control = inductive
    assert float(scores.null[0, 0]) < 0.03
    for head in [(18, 6), (17, 3), (17, 4), (17, 5)]:
        assert float(scores.score[head]) > 0.5
        assert float(scores.z[head]) > 20
        assert float(control.score[head]) < 0.03


def test_previous_token_heads_and_heads_that_rest(model):
    found = trace(model.transformer, torch.tensor([[1, *model.encode(PROSE)]]))
    previous, first = measure(found, [previous_token(found), first_token(found)])
    assert set(strongest(previous, 3)) == {(16, 0), (1, 2), (11, 1)}
    assert float(previous.score[16, 0]) > 0.6
    assert float(first.score[18, 8]) > 0.99
    assert int((first.score > 0.5).sum()) > 50


def test_the_strongest_key_composition_is_from_previous_token_heads_to_induction_heads(model, inductive):
    """Heads of a group share their keys, so a neighbour of an induction head composes as it does."""
    best = composition(model.transformer, "K").top(12)
    keys = {(layer, head // 3) for layer, head in strongest(inductive[0], 8)}
    for earlier, head, later, reader, score, *_ in best.rows:
        assert (earlier, head) in PREVIOUS
        assert (later, reader // 3) in keys
        assert score > 3 * 576**-0.5


def test_ablating_induction_heads_destroys_the_second_copy_and_random_heads_do_not(model, inductive):
    ids = repeated(rows(model, 11)[:, :25], 2, 1)  # other texts than the heads were found on
    top = strongest(inductive[0], 8)
    draw = torch.Generator().manual_seed(0)
    others = torch.tensor([at for at in range(270) if divmod(at, 9) not in top])
    drawn = [others[torch.randperm(262, generator=draw)[:8]].tolist() for _ in range(5)]

    def losses(heads):
        found = token_losses(model.transformer, ids, looks=without(heads))
        return induction_loss(found, 25), float(found[:, 2:26].mean())

    plain, first = losses([])
    ablated, first_ablated = losses(top)
    assert ablated > plain + 5
    assert abs(first_ablated - first) < 0.5  # what cannot be copied is predicted as before
    random = [losses([divmod(at, 9) for at in heads])[0] for heads in drawn]
    assert statistics.median(random) < plain + 1.5
    assert max(random) < ablated
    assert losses(PREVIOUS)[0] > plain + 4

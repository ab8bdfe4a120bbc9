"""Head watches on a circuit whose heads are known, and against the scores themselves."""

import math

import pytest
import torch

from pellucid.inside.head_scores import measure
from pellucid.inside.head_targets import duplicate_token, induction, previous_token
from pellucid.inside.head_watches import repeated_tokens
from pellucid.model.config import Bidirectional, Config
from pellucid.model.transformer import Transformer
from tiny import tiny_gpt2, traced, with_encoder


def test_the_text_is_random_tokens_twice():
    text = repeated_tokens(Config(60, 64, 1, 8, 1), rows=3)
    assert tuple(text.ids.shape) == (3, 50)
    assert torch.equal(text.ids[:, :25], text.ids[:, 25:])
    assert all(len(set(row.tolist())) == 25 for row in text.ids)
    assert repeated_tokens(Config(60, 20, 1, 8, 1)).period == 10
    assert repeated_tokens(Config(7, 64, 1, 8, 1)).period == 7


def test_scores_and_loss_are_those_of_a_trace_of_the_text():
    model = tiny_gpt2()
    text = repeated_tokens(model.config)
    found, run = text.induction(model), traced(model, text.ids)
    (score,) = measure(run, [induction(run)])
    assert found == {
        "loss": found["loss"],
        "chance": pytest.approx(score.null[0, 0].item()),
        **{
            f"{layer}.{head}": pytest.approx(score.score[layer, head].item()) for layer in range(2) for head in range(4)
        },
    }
    wanted = model(text.ids).log_softmax(-1)
    known = range(text.period, 2 * text.period - 1)  # positions that predict the second copy from its second token on
    losses = [-wanted[row, q, text.ids[row, q + 1]].item() for row in range(len(text.ids)) for q in known]
    assert found["loss"] == pytest.approx(sum(losses) / len(losses))
    (before,) = measure(run, [previous_token(run)])
    assert text.previous(model)["1.2"] == pytest.approx(before.score[1, 2].item())


def test_the_null_is_uniform_attention():
    text = repeated_tokens(tiny_gpt2().config)
    null = text.score(tiny_gpt2(), duplicate_token)["chance"]
    queries = range(text.period, 2 * text.period)
    assert null == pytest.approx(math.fsum(1 / (q + 1) for q in queries) / text.period)


@pytest.mark.parametrize(
    "config",
    [
        Config(60, 64, 1, 8, 1, masks=(Bidirectional(),)),
        with_encoder(Config(60, 64, 1, 8, 1)),
    ],
)
def test_models_that_do_not_continue_a_text_are_refused(config):
    with pytest.raises(ValueError, match="watched of decoders"):
        repeated_tokens(Transformer(config).config)


def test_a_context_without_room_is_refused():
    with pytest.raises(ValueError, match="nothing can be repeated"):
        repeated_tokens(Config(60, 3, 1, 8, 1))

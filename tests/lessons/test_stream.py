"""What the stream begins with, what is added, and what comes out of it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from pellucid.lessons.stream import block_on, corrections_on, input_on, next_token_on, stack_on
from pellucid.model.config import Bidirectional, Learned, Parallel, PostNorm
from tiny import build, configs, random_ids, tiny_gpt2, traced

ONE_SIDED = configs().filter(lambda config: config.encoder is None)
MASK = torch.tensor([[1] * 5, [0, 0, 1, 1, 1]])


@settings(max_examples=8)
@given(ONE_SIDED)
def test_the_stream_begins_with_the_sum_of_its_parts(config):
    model = build(config)
    found = traced(model, random_ids(2, 5), MASK)
    (table,) = input_on(found, row=1).tables
    assert len(table) == 3
    assert max(table.column("difference")) < 1e-12
    ids = found.ids[1, 2:]
    assert table.column("id") == tuple(ids.tolist())
    words = (model.embed.words[ids] * config.embedding_scale).norm(dim=-1)
    np.testing.assert_allclose(table.column("|embed.token|"), words)
    if isinstance(config.positions, Learned):
        np.testing.assert_allclose(table.column("|embed.position|"), model.embed.position.weight[:3].norm(dim=-1))


def test_every_state_is_positions_by_width():
    (table,) = stack_on(traced(tiny_gpt2(), random_ids(3, 5))).tables
    assert table.column("state") == ("0.stream", "0.stream.mid", "1.stream", "1.stream.mid", "2.stream")
    assert set(table.column("T x d")) == {"5 x 32"}
    assert table.column("is read by")[:2] == ("0.attention", "0.ffn")
    assert table.note.startswith("2 blocks, which are 4 sublayers.")
    parallel = stack_on(traced(tiny_gpt2(block=Parallel(1)), random_ids(1, 5))).tables[0]
    assert parallel.column("is read by")[0] == "0.attention and 0.ffn"
    assert parallel.note.startswith("2 blocks, which are 4 sublayers.")


@settings(max_examples=8)
@given(ONE_SIDED)
def test_every_block_is_its_formula(config):
    (table,) = block_on(traced(build(config), random_ids(2, 4)), layer=config.n_layers - 1).tables
    assert max(table.column("largest difference")) < 1e-11
    assert len(table) == (3 if isinstance(config.block, Parallel) else 4)
    ends = [formula for value, formula, _ in table if "stream" in value]
    assert all(formula.startswith("norm(x + ") == isinstance(config.block, PostNorm) for formula in ends)


@pytest.mark.slow
@settings(max_examples=8)
@given(ONE_SIDED)
def test_the_last_state_is_the_embedding_and_all_corrections(config):
    found = traced(build(config), random_ids(2, 4))
    if isinstance(config.block, PostNorm):
        with pytest.raises(ValueError, match="no sum of corrections"):
            corrections_on(found)
        return
    (table,) = corrections_on(found).tables
    assert max(off for off in table.column("sum so far - state") if off is not None) < 1e-11
    assert table.rows[-1][2] is not None
    assert table.note.endswith("set to 0 the state moves by 0.")
    sizes = [float(found[f"{name}.update"][0].norm(dim=-1).mean()) for name in table.column("written by")]
    np.testing.assert_allclose(table.column("mean norm"), sizes)


def test_every_position_is_scored_against_the_token_that_follows():
    model = tiny_gpt2()
    found = traced(model, random_ids(2, 5), MASK)
    scored, ahead = next_token_on(found, row=1).tables
    logits = found["logits"][1, 2:].numpy()
    ids = found.ids[1, 2:].tolist()
    for at, _, _, p, loss, rank in scored:
        chances = np.exp(logits[at]) / np.exp(logits[at]).sum()
        assert p == pytest.approx(chances[ids[at + 1]])
        assert loss == pytest.approx(-np.log(chances[ids[at + 1]]))
        assert rank == 1 + (chances > chances[ids[at + 1]]).sum()
    assert len(scored) == 2
    assert ahead.rows == found.top(5, row=1).rows
    with pytest.raises(ValueError, match="does not predict it"):
        next_token_on(traced(tiny_gpt2(masks=(Bidirectional(),)), random_ids(1, 3)))

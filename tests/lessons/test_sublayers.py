"""Every line of a sublayer, for every kind of model, and lines that are not as the formula has them."""

import pytest
import torch
from hypothesis import given, settings

from pellucid.inside.edits import set_to
from pellucid.lessons.sublayers import attention_on, feed_forward_on, unembedding_on
from pellucid.model.config import MaskedLanguage, Parallel, PostNorm, SwiGLU
from tiny import build, configs, random_ids, tiny_gpt2, traced

MASK = torch.tensor([[1] * 5, [0, 0, 1, 1, 1]])
ONE_SIDED = configs().filter(lambda config: config.encoder is None)


@pytest.mark.slow
@settings(max_examples=12)
@given(ONE_SIDED)
def test_every_line_is_what_the_model_made(config):
    found, last = traced(build(config), random_ids(2, 5), MASK), config.n_layers - 1
    for row in (0, 1):
        (lines,) = attention_on(found, last, row).tables
        assert len(lines) == 7
        assert max(lines.column("largest difference")) < 1e-11
        length = 5 - 2 * row
        assert lines.column("shape")[3] == f"{config.n_heads} x {length} x {length}"
        (lines,) = feed_forward_on(found, last, row).tables
        assert len(lines) == (4 if isinstance(config.activation, SwiGLU) else 3)
        assert max(lines.column("largest difference")) < 1e-11
        if isinstance(config.head, MaskedLanguage):
            with pytest.raises(ValueError, match="by a norm and a matrix alone"):
                unembedding_on(found, row)
            continue
        (line,) = unembedding_on(found, row).tables[0].rows
        plain = isinstance(config.block, PostNorm) and not config.block.final_norm
        assert line[1] == ("x " if plain else "norm(x) ") + ("E^T" if config.tied else "W_U")
        assert line[2] == f"{length} x {config.vocab_size}"
        assert line[3] < 1e-11


def test_a_value_that_is_not_its_formulas_stands_out():
    found = traced(tiny_gpt2(block=Parallel(2)), random_ids(1, 4)).edit(set_to("1.attention.scores", 0.5, head=2))
    lines = {row[0]: row[3] for row in attention_on(found, 1).tables[0]}
    assert lines["1.attention.key"] < 1e-12
    assert lines["1.attention.scores"] > 0.01
    assert lines["1.attention.update"] > 0.01
    assert max(attention_on(found, 0).tables[0].column("largest difference")) < 1e-12

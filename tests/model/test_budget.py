"""The budget against the parameters of a model that was really built."""

import pytest
from hypothesis import given, settings

from pellucid.model.budget import budget
from pellucid.model.config import Config, Dropout
from pellucid.model.transformer import Transformer
from tiny import configs


@pytest.mark.slow
@settings(max_examples=60)
@given(configs())
def test_the_budget_counts_every_parameter_once(config):
    assert budget(config).total == sum(weight.numel() for weight in Transformer(config).parameters())


@pytest.mark.parametrize("heads", [{}, {"pooler": True}, {"pooler": True, "next_sentence": True}])
def test_heads_on_the_first_token_are_counted(heads):
    config = Config(50, 16, 1, 12, 2, **heads)
    assert budget(config).total == sum(weight.numel() for weight in Transformer(config).parameters())


def test_the_lines_of_gpt_2_small():
    count = budget(Config(50257, 1024, 12, 768, 12, dropout=Dropout()))
    assert [line.count for line in count.lines] == [38_597_376, 786_432, 85_054_464, 1_536]
    assert sum(line.count for line in count.block) == 7_087_872
    assert count.total == 124_439_808
    assert count.rule == 84_934_656

import pytest
import torch

from pellucid.inside.errors import SiteError
from pellucid.inside.stages import stages
from pellucid.inside.trace import trace
from pellucid.model.config import Config
from pellucid.model.transformer import Transformer


@pytest.fixture(scope="module")
def found():
    torch.manual_seed(1)
    model = Transformer(Config(vocab_size=11, context_length=8, n_layers=2, d_model=12, n_heads=3)).eval()
    return trace(model, torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]]), torch.tensor([[1] * 5, [1, 1, 1, 0, 0]]))


def test_every_site_has_its_value_at_the_position(found):
    shown = stages(found, found.names, row=0, position=-1)
    assert [stage.site.name for stage in shown] == found.names
    for stage in shown:
        value = found[stage.site.name]
        at = value[0, :, 4] if stage.site.axes[1] == "H" else value[0, 4]
        assert stage.shape == tuple(value.shape)
        assert torch.equal(stage.values, at.flatten())


def test_the_norm_is_euclidean_and_leaves_masked_scores_out(found):
    (scores,) = stages(found, ["1.attention.scores"], position=1)
    finite = found["1.attention.scores"][0, :, 1, :2]
    assert scores.values.isinf().sum() == 3 * 3
    assert scores.norm == pytest.approx(float(finite.pow(2).sum().sqrt()), rel=1e-6)


def test_positions_count_a_rows_tokens_padding_left_out(found):
    (last,) = stages(found, ["2.stream"], row=1, position=-1)
    assert torch.equal(last.values, found["2.stream"][1, 2])


def test_stages_come_in_the_order_of_the_data(found):
    shown = stages(found, ["logits", "0.stream", "1.ffn.up"])
    assert [stage.site.name for stage in shown] == ["0.stream", "1.ffn.up", "logits"]


def test_what_is_not_there_is_refused(found):
    with pytest.raises(SiteError, match=r"0\.stream"):
        stages(found, ["0.strean"])
    with pytest.raises(ValueError, match=r"positions 0\.\.2, got position=3"):
        stages(found, ["0.stream"], row=1, position=3)

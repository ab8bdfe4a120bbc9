"""An objective that is written out, and data to train on, for tests of everything around them."""

import pytest
import torch
import torch.nn.functional as F

from pellucid.model.config import Config, Dropout, Init
from pellucid.model.transformer import Transformer
from pellucid.training.batch import NO_TARGET


@pytest.fixture(scope="session")
def plain_objective():
    """The sum of the targets' losses, by torch's own cross-entropy."""

    def objective(transformer, batch):
        logits = transformer(batch.ids, batch.mask)
        total = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=NO_TARGET, reduction="sum")
        return total, int((batch.targets != NO_TARGET).sum())

    return objective


@pytest.fixture
def tiny_transformer():
    """A tiny random decoder; the same for the same seed."""

    def build(seed=0, dtype=torch.float32, **changes):
        torch.manual_seed(seed)
        shape = {"vocab_size": 23, "context_length": 12, "n_layers": 2, "d_model": 16, "n_heads": 2, "init": Init(0.3)}
        if "dropout" in changes:
            changes["dropout"] = Dropout(*[changes["dropout"]] * 3)
        return Transformer(Config(**{**shape, **changes})).to(dtype)

    return build

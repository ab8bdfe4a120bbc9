"""What a config refuses, and its way to plain data and back."""

import json

import pytest
from hypothesis import given, settings

from pellucid.model.config import (
    Bidirectional,
    Config,
    LayerNorm,
    MaskedLanguage,
    Parallel,
    Sinusoidal,
    SwiGLU,
    Window,
)  # fmt: skip
from pellucid.model.rotary import Rotary
from tiny import configs


@pytest.mark.slow
@settings(max_examples=60)
@given(configs())
def test_a_config_survives_json(config):
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config


SIZES = {"vocab_size": 50, "context_length": 16, "n_layers": 2, "d_model": 12, "n_heads": 2}
ENCODER = Config(**SIZES, masks=(Bidirectional(),), head=None)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"vocab_size": 0}, "vocab_size must be a whole number of at least 1, got 0"),
        ({"n_heads": 5}, "d_model must be a multiple of n_heads"),
        ({"n_kv_heads": 3, "n_heads": 4}, "n_heads must be a multiple of n_kv_heads"),
        ({"masks": ()}, "at least one mask"),
        ({"attention_scales": (1.0, 2.0, 3.0)}, "one per layer"),
        ({"positions": Rotary(fraction=0.1)}, "even and at least 2"),
        ({"positions": Sinusoidal(), "d_model": 9, "n_heads": 3}, "sinusoids come in pairs"),
        ({"n_token_types": -1}, "n_token_types must be at least 0"),
        ({"next_sentence": True}, "pooler=True"),
        ({"head": MaskedLanguage(), "activation": SwiGLU()}, "plain activation"),
        ({"head": None, "tied": False}, "tied=True"),
        ({"encoder": ENCODER, "block": Parallel()}, "cannot be Parallel"),
        ({"encoder": ENCODER, "masks": (Bidirectional(),)}, "must be causal"),
        ({"encoder": Config(**SIZES)}, "head=None"),
        ({"encoder": ENCODER, "vocab_size": 51}, "shared embedding"),
    ],
)
def test_nonsense_is_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        Config(**(SIZES | fields))


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (lambda: Window(0), "Window.width"),
        (lambda: Parallel(3), "1 or 2, got 3"),
        (lambda: LayerNorm(0.0), "above 0"),
    ],
)
def test_records_refuse_nonsense(record, said):
    with pytest.raises(ValueError, match=said):
        record()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"vocab": 5}, "no field 'vocab'; Config has vocab_size"),
        ({}, "lacks vocab_size"),
        (SIZES | {"n_layers": "2"}, "config.n_layers must be int, got '2'"),
        (SIZES | {"tied": 1}, "config.tied must be bool"),
        (SIZES | {"norm": {"kind": "BatchNorm"}}, "LayerNorm, RMSNorm, got 'BatchNorm'"),
        (SIZES | {"norm": {"kind": "LayerNorm", "epsilon": 1.0}}, "config.norm has no field 'epsilon'"),
        (SIZES | {"masks": [{"kind": "Window", "width": True}]}, r"config.masks\[0\].width must be int"),
    ],
)
def test_plain_data_that_is_no_config_is_refused(data, said):
    with pytest.raises(ValueError, match=said):
        Config.from_dict(data)

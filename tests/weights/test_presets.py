"""Shapes against the published parameter counts."""

import dataclasses

import pytest
import torch

from pellucid.model.config import Config, RMSNorm, SwiGLU
from pellucid.model.rotary import Rotary
from pellucid.weights.outline import outline
from pellucid.weights.presets import PRESETS, preset


def count(config: Config) -> int:
    return sum(weight.numel() for weight in outline(config).parameters())


@pytest.mark.parametrize(
    ("name", "published"),
    [("gpt2", 124439808), ("gpt2-medium", 354823168), ("gpt2-large", 774030080), ("gpt2-xl", 1557611200)],
)
def test_cnt_1_published_counts(name, published):
    assert count(preset(name)) == published


def test_cnt_1_what_is_counted():
    small = preset("gpt2")
    assert count(dataclasses.replace(small, tied=False)) == 163037184
    assert count(dataclasses.replace(small, vocab_size=50304)) == 124475904
    model = outline(small)
    assert count(small) - model.embed.position.weight.numel() == 123653376
    assert model.W_U.numel() == 38597376


@pytest.mark.parametrize(
    ("width", "layers", "heads", "d_ff", "published", "untied"),
    [
        (288, 6, 6, 768, 15191712, 24407712),
        (512, 8, 8, 1376, 41689600, 58073600),
        (768, 12, 12, 2048, 109529856, 134105856),
    ],
)
def test_cnt_1_llama2_c(width, layers, heads, d_ff, published, untied):
    config = Config(
        32000,
        1024,
        layers,
        width,
        heads,
        d_ff=d_ff,
        positions=Rotary(),
        norm=RMSNorm(),
        activation=SwiGLU(),
        qkv_bias=False,
        out_bias=False,
        ffn_bias=False,
    )
    assert count(config) == published
    assert count(dataclasses.replace(config, tied=False)) == untied


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(ValueError, match=r"no preset 'gpt2-larg'; the nearest are gpt2-large"):
        preset("gpt2-larg")
    with pytest.raises(ValueError, match=", ".join(PRESETS)):
        preset("zzz")


def test_an_outline_has_shapes_and_no_numbers():
    model = outline(preset("gpt2"))
    assert not model.training
    assert {weight.device for weight in model.parameters()} == {torch.device("meta")}

"""Published shapes: their parameter counts, as the papers and the releases have them."""

import dataclasses

import pytest
import torch

from pellucid.model.budget import budget
from pellucid.model.config import Config, RMSNorm, SwiGLU
from pellucid.model.rotary import Rotary
from pellucid.weights.outline import outline
from pellucid.weights.presets import BAND, PRESETS, preset

# Of the released files where there are files, else worked out from the paper's sizes, biases and all.
COUNTS = {
    "gpt2": 124439808,
    "gpt2-medium": 354823168,
    "gpt2-large": 774030080,
    "gpt2-xl": 1557611200,
    "gpt3-125m": 125226240,
    "gpt3-350m": 355871744,
    "gpt3-760m": 760300032,
    "gpt3-1.3b": 1315723264,
    "gpt3-2.7b": 2651553280,
    "gpt3-6.7b": 6658404352,
    "gpt3-175b": 174604259328,
    "palm-8b": 8632012800,
    "palm-62b": 62495662080,
    "palm-540b": 540356474880,
    "pythia-14m": 14067712,
    "pythia-31m": 30494720,
    "pythia-70m": 70426624,
    "pythia-160m": 162322944,
    "pythia-410m": 405334016,
    "pythia-1b": 1011781632,
    "pythia-1.4b": 1414647808,
    "pythia-2.8b": 2775208960,
    "pythia-6.9b": 6857302016,
    "pythia-12b": 11846072320,
    "llama-7b": 6738415616,
    "llama-13b": 13015864320,
    "llama-30b": 32528943616,
    "llama-33b": 32528943616,
    "llama-65b": 65285660672,
    "llama-2-7b": 6738415616,
    "llama-2-13b": 13015864320,
    "llama-2-70b": 68976648192,
    "llama-3-8b": 8030261248,
    "llama-3-70b": 70553706496,
    "llama-3.2-1b": 1235814400,
    "llama-3.2-3b": 3212749824,
    "tinyllama-1.1b": 1100048384,
    "smollm2-135m": 134515008,
    "mistral-7b-v0.1": 7241732096,
    "mistral-7b-v0.2": 7241732096,
    "mistral-7b-v0.3": 7248023552,
    "bert-base-uncased": 110106428,
    "bert-large-uncased": 336226108,
}
# As printed, in millions: of shapes whose exact count nobody published.
ROUNDED = {"gpt3-13b": "12853", "transformer-base": "63.0", "transformer-big": "214.2"}
# Without the embeddings (Biderman et al. 2023)
NON_EMBEDDING = {
    "pythia-14m": 1189888,
    "pythia-31m": 4739072,
    "pythia-70m": 18915328,
    "pythia-160m": 85056000,
    "pythia-410m": 302311424,
    "pythia-1b": 805736448,
    "pythia-1.4b": 1208602624,
    "pythia-2.8b": 2517652480,
    "pythia-6.9b": 6444163072,
    "pythia-12b": 11327027200,
}
BARE = {"head": None, "next_sentence": False}


def count(config: Config) -> int:
    """Of the transformer's own weights, which must be what the budget adds up to."""
    total = sum(weight.numel() for weight in outline(config).parameters())
    assert budget(config).total == total
    return total


@pytest.mark.parametrize(("name", "published"), COUNTS.items())
def test_cnt_1_published_counts(name, published):
    assert count(preset(name)) == published


@pytest.mark.parametrize(("name", "millions"), ROUNDED.items())
def test_cnt_1_counts_as_printed(name, millions):
    digits = len(millions.partition(".")[2])
    assert f"{count(preset(name)) / 1e6:.{digits}f}" == millions


def test_every_preset_is_counted():
    assert COUNTS.keys() | ROUNDED.keys() | {"bert-base-cased"} == PRESETS.keys()


@pytest.mark.parametrize(("name", "published"), NON_EMBEDDING.items())
def test_pythia_without_embeddings(name, published):
    config = preset(name)
    assert count(config) - 2 * config.vocab_size * config.d_model == published


@pytest.mark.parametrize(
    ("name", "changes", "published"),
    [
        ("bert-base-uncased", BARE, 109482240),
        ("bert-base-uncased", {"pooler": False, "next_sentence": False}, 109514298),
        ("bert-base-cased", BARE, 108310272),
        ("bert-large-uncased", BARE, 335141888),
        ("transformer-base", {"vocab_size": 32000}, 60.5e6),
        ("transformer-big", {"vocab_size": 32000}, 209.1e6),
    ],
)
def test_cnt_1_with_other_parts(name, changes, published):
    """BERT by its heads; the 2017 model with the smaller vocabulary of its English-French twin."""
    config = preset(name)
    if config.encoder is not None:
        changes = changes | {"encoder": dataclasses.replace(config.encoder, **changes)}
    assert count(dataclasses.replace(config, **changes)) == pytest.approx(published, rel=0 if published % 1e5 else 1e-3)


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


def test_bands_stand_in_every_second_layer():
    config = preset("gpt3-175b")
    widths = [getattr(config.mask(layer), "width", None) for layer in range(4)]
    assert widths == [None, BAND, None, BAND]


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(ValueError, match=r"no preset 'gpt2-larg'; the nearest are gpt2-large"):
        preset("gpt2-larg")
    with pytest.raises(ValueError, match=", ".join(PRESETS)):
        preset("zzz")


def test_an_outline_has_shapes_and_no_numbers():
    model = outline(preset("gpt2"))
    assert not model.training
    assert {weight.device for weight in model.parameters()} == {torch.device("meta")}

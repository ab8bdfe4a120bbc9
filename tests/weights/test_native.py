"""Our own layout: any config, its tensors byte for byte, and hostile folders refused."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from pellucid.model.config import Config, Dropout, FanIn
from pellucid.weights.errors import CheckpointError
from pellucid.weights.expressing import family_for
from pellucid.weights.families import FAMILIES
from pellucid.weights.loading import load_checkpoint
from pellucid.weights.outline import outline
from pellucid.weights.presets import preset
from pellucid.weights.saving import save_checkpoint
from tiny import build, configs, passed, random_ids
from twins import drawn

SMALL = Config(23, 16, 2, 12, 3, dropout=Dropout(0.1), init=FanIn())


def small(name: str) -> Config:
    """A preset's form in a size that is quick."""
    sizes = {
        "vocab_size": 50,
        "context_length": 32,
        "n_layers": 2,
        "d_model": 16,
        "n_heads": 4,
        "d_head": 4,
        "d_ff": 24,
    }
    config = preset(name)
    kv = 4 if config.n_kv_heads == config.n_heads else 1
    encoder = config.encoder and replace(config.encoder, **sizes, n_kv_heads=4)
    return replace(config, **sizes, n_kv_heads=kv, encoder=encoder)


@pytest.mark.parametrize("name", ["palm-8b", "gpt3-125m", "transformer-base"])
def test_what_no_family_can_express(name, tmp_path):
    """It goes to our own layout without being asked, and computes the same."""
    model = build(small(name), dtype=torch.float32)
    save_checkpoint(tmp_path / "m", model, generation={"eos_token_id": 2})
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == "pellucid"
    back = load_checkpoint(tmp_path / "m")
    assert (back.config, back.generation["eos_token_id"]) == (model.config, 2)
    ids = random_ids(2, 5)
    assert torch.equal(passed(back.transformer, ids), passed(model, ids))


@pytest.mark.slow
@settings(max_examples=25)
@given(config=configs())
def test_any_config_and_its_tensors(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("m") / "m"
    model = build(config, dtype=torch.bfloat16)
    save_checkpoint(folder, model, layout="pellucid", shard_bytes=10_000)
    stored = {}
    for file in folder.glob("*.safetensors"):
        stored |= load_file(file)
    weights = model.state_dict()
    assert stored.keys() == weights.keys()
    assert all(torch.equal(stored[name], weight) for name, weight in weights.items())
    back = load_checkpoint(folder)
    assert back.config == config
    assert all(torch.equal(back.transformer.state_dict()[name], weight) for name, weight in weights.items())


@pytest.mark.parametrize("name", ["gpt2", "llama-7b", "pythia-70m", "palm-540b", "gpt3-175b", "transformer-big"])
def test_our_own_is_the_last_resort(name):
    config = replace(preset(name), n_layers=2)
    family = family_for(config, outline(config).state_dict())
    assert (family is FAMILIES["pellucid"]) == name.startswith(("palm", "gpt3", "transformer"))


@torch.no_grad()
def test_there_and_back(tmp_path):
    """Hugging Face's folder, ours, and Hugging Face's again: the same file of weights."""
    hf = drawn(GPT2LMHeadModel(GPT2Config(vocab_size=23, n_positions=16, n_embd=12, n_layer=2, n_head=3)))
    hf.save_pretrained(tmp_path / "a")
    save_checkpoint(tmp_path / "b", load_checkpoint(tmp_path / "a").transformer, layout="pellucid")
    save_checkpoint(tmp_path / "c", load_checkpoint(tmp_path / "b").transformer, layout="gpt2")
    first, last = (load_file(tmp_path / each / "model.safetensors") for each in "ac")
    assert first.keys() == last.keys()
    assert all(torch.equal(first[name], last[name]) for name in first)
    ids = torch.arange(8)[None]
    assert torch.equal(GPT2LMHeadModel.from_pretrained(tmp_path / "c").eval()(ids).logits, hf(ids).logits)


def test_training_settings_come_back(tmp_path):
    save_checkpoint(tmp_path / "m", build(SMALL), layout="pellucid")
    assert load_checkpoint(tmp_path / "m").config == SMALL


# --- Hostile ---


@pytest.fixture
def folder(tmp_path):
    save_checkpoint(tmp_path / "m", build(SMALL, dtype=torch.float32), layout="pellucid")
    return tmp_path / "m"


def nested(depth: int) -> dict:
    inner = SMALL.to_dict()
    for _ in range(depth):
        inner = SMALL.to_dict() | {"encoder": {"kind": "Config", **inner}}
    return inner


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda config: None, "config must be a mapping of Config's fields, got None"),
        (lambda config: [1], r"config must be a mapping of Config's fields, got \[1\]"),
        (lambda config: config | {"width": 12}, "has no field 'width'"),
        (lambda config: {"vocab_size": 23}, "lacks context_length"),
        (lambda config: config | {"norm": {"kind": "BatchNorm"}}, "must name its kind.*got 'BatchNorm'"),
        (lambda config: config | {"norm": {"kind": ["LayerNorm"]}}, "config.json: "),
        (
            lambda config: config | {"norm": {"kind": "LayerNorm", "eps": float("nan")}},
            "expected finite numbers, got nan",
        ),
        (lambda config: config | {"logit_scale": float("inf")}, "expected finite numbers, got inf"),
        (lambda config: config | {"logit_scale": 10**400}, "config.json: "),
        (lambda config: config | {"n_layers": True}, r"config.n_layers must be int, got True"),
        (lambda config: config | {"n_layers": "2"}, r"config.n_layers must be int, got '2'"),
        (lambda config: config | {"n_layers": -1}, "n_layers"),
        (lambda config: config | {"n_layers": 10**9}, "layers need more than its"),
        (lambda config: config | {"n_layers": 3}, r"missing: 'blocks.2.attention.norm.bias'"),
        (lambda config: config | {"d_ff": 10**15}, "config"),
        (lambda config: config | {"n_heads": 5}, "multiple"),
        (lambda config: config | {"tied": False}, "missing: 'unembed.weight'"),
        (lambda config: config | {"masks": []}, "at least one mask"),
        (lambda config: nested(2), "encoder"),
        (lambda config: nested(200), "config.json: "),
    ],
)
def test_hostile_configs_are_refused(change, message, folder):
    values = json.loads((folder / "config.json").read_text())
    values["config"] = change(values["config"])
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


def test_fields_beside_the_config_are_refused(folder):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"n_layer": 3}))
    with pytest.raises(CheckpointError, match="unknown fields that might change the model: n_layer=3"):
        load_checkpoint(folder)


def test_tensors_of_other_names_and_shapes_are_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"unembed.weight": tensors["embed.token.weight"].clone()}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"1 not known: 'unembed.weight'"):
        load_checkpoint(folder)
    save_file(tensors | {"final_norm.bias": torch.zeros(13)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"final_norm.bias must have shape \[12\], got \[13\]"):
        load_checkpoint(folder)

"""Saved folders: they load in Hugging Face and here with the same numbers, and come into place whole or not at all."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from safetensors.torch import load_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    MistralConfig,
    MistralForCausalLM,
)

from pellucid.model.config import Config, Gelu, Learned, RMSNorm, SwiGLU, Window
from pellucid.model.rotary import LongRope, Rotary
from pellucid.model.transformer import Transformer
from pellucid.weights import saving
from pellucid.weights.errors import CheckpointError
from pellucid.weights.expressing import comparable, family_for
from pellucid.weights.families import FAMILIES
from pellucid.weights.loading import load_checkpoint
from pellucid.weights.outline import outline
from pellucid.weights.presets import PRESETS, preset
from pellucid.weights.saving import save_checkpoint, tokenizer_files
from tiny import build, configs
from twins import drawn

IDS = torch.arange(22).reshape(2, 11) * 7 % 23
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20}
LENGTH = {"vocab_size": 23, "max_position_embeddings": 16}
LLAMA = LENGTH | SHAPE | {"num_key_value_heads": 2}
GPT2 = {"vocab_size": 23, "n_positions": 16, "n_embd": 12, "n_layer": 2, "n_head": 3, "bos_token_id": 0}
MARIAN = {
    "vocab_size": 23, "d_model": 12, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 3, "max_position_embeddings": 16,
    "activation_function": "relu", "pad_token_id": 0, "decoder_start_token_id": 0, "forced_eos_token_id": 1,
}  # fmt: skip
NEO = {"vocab_size": 23, "hidden_size": 12, "num_heads": 3, "max_position_embeddings": 16}


def rope(kind: str, **numbers) -> dict:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 100.0, **numbers}}


SCALED = {"factor": 4.0, "original_max_position_embeddings": 16}
MODELS = {
    "gpt2": (GPT2LMHeadModel, GPT2Config, GPT2),
    "gpt2 scales": (GPT2LMHeadModel, GPT2Config, GPT2 | {"scale_attn_by_inverse_layer_idx": True}),
    "gpt2 untied": (
        GPT2LMHeadModel,
        GPT2Config,
        GPT2 | {"tie_word_embeddings": False, "scale_attn_weights": False, "activation_function": "relu"},
    ),
    "llama": (LlamaForCausalLM, LlamaConfig, LLAMA | {"attention_bias": True, "head_dim": 6}),
    "llama linear": (LlamaForCausalLM, LlamaConfig, LLAMA | rope("linear", factor=2.0)),
    "llama dynamic": (LlamaForCausalLM, LlamaConfig, LLAMA | rope("dynamic", factor=2.0)),
    "llama yarn": (LlamaForCausalLM, LlamaConfig, LLAMA | rope("yarn", **SCALED, attention_factor=0.7)),
    "llama llama3": (
        LlamaForCausalLM,
        LlamaConfig,
        LLAMA | rope("llama3", **SCALED, low_freq_factor=1.0, high_freq_factor=4.0),
    ),
    "llama longrope": (
        LlamaForCausalLM,
        LlamaConfig,
        LLAMA | rope("longrope", **SCALED, short_factor=[1.0] * 4, long_factor=[1.0, 2.0, 3.0, 4.0]),
    ),
    "mistral": (MistralForCausalLM, MistralConfig, LLAMA | {"sliding_window": 4}),
    "gpt_neox": (GPTNeoXForCausalLM, GPTNeoXConfig, LENGTH | SHAPE),
    "gpt_neox serial": (
        GPTNeoXForCausalLM,
        GPTNeoXConfig,
        LENGTH
        | SHAPE
        | rope("linear", factor=2.0, partial_rotary_factor=0.5)
        | {"use_parallel_residual": False, "attention_bias": False, "tie_word_embeddings": True},
    ),
    "gpt_neo": (
        GPTNeoForCausalLM,
        GPTNeoConfig,
        NEO | {"num_layers": 3, "attention_types": [[["global", "local"], 1], [["local"], 1]], "window_size": 4},
    ),
    "bert": (BertModel, BertConfig, LENGTH | SHAPE),
    "bert masked": (BertForMaskedLM, BertConfig, LENGTH | SHAPE | {"hidden_act": "gelu_new"}),
    "bert pre-training": (BertForPreTraining, BertConfig, LENGTH | SHAPE),
    "bert next sentence": (BertForNextSentencePrediction, BertConfig, LENGTH | SHAPE),
    "marian": (MarianMTModel, MarianConfig, MARIAN | {"scale_embedding": True}),
    "marian apart": (
        MarianMTModel,
        MarianConfig,
        MARIAN | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 29},
    ),
}


@torch.no_grad()
def outputs(hf) -> list[torch.Tensor]:
    texts = {"decoder_input_ids": IDS[:, :5]} if isinstance(hf, MarianMTModel) else {}
    return [output for output in hf(IDS, **texts, use_cache=False, return_dict=True).to_tuple() if output.ndim]


@pytest.mark.parametrize(
    ("name", "shard_bytes"), [(name, 10**9) for name in MODELS] + [("gpt_neox", 3000), ("bert masked", 3000)]
)
def test_there_and_back(name, shard_bytes, tmp_path):
    """Hugging Face's file, ours from it, and what each reads of ours: the same tensors, byte for byte."""
    kind, config, fields = MODELS[name]
    hf = drawn(kind(config(**fields)))
    hf.save_pretrained(tmp_path / "theirs")
    first = load_checkpoint(tmp_path / "theirs")
    save_checkpoint(tmp_path / "ours", first.transformer, generation=first.generation, shard_bytes=shard_bytes)

    stored = {}
    for file in (tmp_path / "ours").glob("*.safetensors"):
        stored |= load_file(file)
    theirs = load_file(tmp_path / "theirs" / "model.safetensors")
    prefix = "bert." if kind is BertModel else ""
    assert stored.keys() == {prefix + each for each in theirs}
    assert all(torch.equal(stored[prefix + each], tensor) for each, tensor in theirs.items())

    second = load_checkpoint(tmp_path / "ours")
    assert second.config == first.config
    weights = second.transformer.state_dict()
    assert all(torch.equal(weights[each], tensor) for each, tensor in first.transformer.state_dict().items())

    other, info = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    for mine, yours in zip(outputs(other.eval()), outputs(hf), strict=True):
        assert torch.equal(mine, yours)


@pytest.mark.parametrize("name", MODELS)
def test_settings_in_both_spellings(name, tmp_path):
    """A config.json with only the keys of releases before 5, and one with only those after, are the same config."""
    kind, config, fields = MODELS[name]
    hf = drawn(kind(config(**fields)))
    hf.save_pretrained(tmp_path / "theirs")
    first = load_checkpoint(tmp_path / "theirs")
    save_checkpoint(tmp_path / "ours", first.transformer)
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    old = {"torch_dtype", "rope_theta", "rope_scaling", "rotary_pct", "rotary_emb_base"}
    new = {"dtype", "rope_parameters"}
    assert ("rope_parameters" in written) == isinstance(first.config.positions, Rotary)
    for left_out in (old, new):
        values = {each: value for each, value in written.items() if each not in left_out}
        (tmp_path / "ours" / "config.json").write_text(json.dumps(values))
        assert load_checkpoint(tmp_path / "ours").config == first.config


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_precisions(dtype, tmp_path):
    model = build(SMALL, dtype=dtype)
    save_checkpoint(tmp_path / "m", model)
    assert json.loads((tmp_path / "m" / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    assert GPT2LMHeadModel.from_pretrained(tmp_path / "m", dtype="auto").dtype == dtype
    assert load_checkpoint(tmp_path / "m").transformer.final_norm.weight.dtype == dtype


@settings(max_examples=20)
@given(configs())
def test_what_can_be_saved_reads_back(config):
    """Any config is either refused or read back as it was; which, is the families' own fields' doing."""
    names = outline(config).state_dict()
    try:
        family = family_for(config, names, "hf")
    except CheckpointError:
        return
    back, _ = family.read_config(family.write_config(config), "here")
    assert comparable(back) == comparable(config)


SMALL = Config(23, 16, 2, 12, 3)
ROTARY = replace(
    SMALL, positions=Rotary(), norm=RMSNorm(), activation=SwiGLU(), qkv_bias=False, out_bias=False, ffn_bias=False
)


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        (SMALL, "gpt2"),
        (ROTARY, "llama"),
        (replace(ROTARY, masks=(Window(3),)), "mistral"),
        (replace(SMALL, positions=Rotary(fraction=0.5)), "gpt_neox"),
        (replace(SMALL, qkv_bias=False, attention_scales=(1.0,), masks=(*SMALL.masks, Window(3))), "gpt_neo"),
    ],
)
def test_the_layout_goes_by_the_config(config, layout):
    assert family_for(config, outline(config).state_dict()) is FAMILIES[layout]


@pytest.mark.parametrize(
    ("config", "layout", "message"),
    [
        (ROTARY, "gpt2", r"the gpt2 layout has no place for .*"),
        (
            SMALL,
            "llama",
            r"the llama layout has no place for positions=Learned\(\); norm=LayerNorm.*; activation=GeluTanh\(\)",
        ),
        (replace(ROTARY, masks=(Window(3),)), "llama", r"the llama layout has no place for masks=Window\(width=3\)$"),
        (replace(ROTARY, logit_scale=0.5), "hf", r"the nearest, llama, has no place for logit_scale=0.5$"),
        (replace(ROTARY, embedding_scale=2.0), "mistral", r"mistral layout has no place for embedding_scale=2.0$"),
        (
            replace(SMALL, masks=(Window(3),)),
            "hf",
            r"no layout of Hugging Face's .* nearest, gpt2, has no place for masks=Window\(width=3\)$",
        ),
        (replace(SMALL, attention_scales=(0.3,)), "gpt2", r"no place for attention_scales=0.3$"),
        (replace(SMALL, activation=SwiGLU()), "gpt2", r"activation=SwiGLU\(\)"),
        (SMALL, "gpt3", "no layout 'gpt3', only gpt2, llama, mistral"),
        (preset("palm-8b"), "hf", r"no place for"),
        (preset("gpt3-125m"), "hf", r"no place for masks"),
        (preset("transformer-base"), "marian", r"no place for .*positions=Sinusoidal\(layout='interleaved'\)"),
    ],
)
def test_what_a_layout_has_no_place_for(config, layout, message, tmp_path):
    small = replace(config, n_layers=2, vocab_size=23) if config.encoder is None else config
    model = outline(small)
    with pytest.raises(CheckpointError, match=message):
        save_checkpoint(tmp_path / "m", model, layout=layout)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [name for name in PRESETS if not name.startswith(("gpt3", "palm", "transformer"))])
def test_published_shapes_can_be_saved(name):
    config = replace(preset(name), n_layers=2)
    family_for(config, outline(config).state_dict(), "hf")


def test_bands_of_rotation_factors(tmp_path):
    """What a GGUF file states pair by pair survives as a longrope of one length."""
    factors = (1.0, 1.5)
    config = replace(ROTARY, positions=Rotary(scaling=LongRope(factors, factors, 16, 1.0, 1.0)))
    model = build(config, dtype=torch.float32)
    save_checkpoint(tmp_path / "m", model)
    hf = LlamaForCausalLM.from_pretrained(tmp_path / "m").eval()
    with torch.no_grad():
        assert (model(IDS) - hf(IDS).logits).abs().max() <= 2e-5 * model(IDS).abs().max()
    assert load_checkpoint(tmp_path / "m").config.positions == config.positions


# --- The folder ---


@pytest.fixture
def model() -> Transformer:
    return build(SMALL, dtype=torch.float32)


def test_files_that_come_along(model, tmp_path):
    ends = {"eos_token_id": [1, 2], "bos_token_id": None, "temperature": 0.5}
    files = {"tokenizer.json": b'{"version": "1.0"}', "vocab.txt": "é\n".encode()}
    assert save_checkpoint(tmp_path / "m", model, generation=ends, beside=files) == tmp_path / "m"
    assert json.loads((tmp_path / "m" / "generation_config.json").read_text()) == {
        "eos_token_id": [1, 2],
        "temperature": 0.5,
    }
    assert tokenizer_files(tmp_path / "m") == files
    assert load_checkpoint(tmp_path / "m").generation["eos_token_id"] == [1, 2]
    assert json.loads((tmp_path / "m" / "config.json").read_text())["bos_token_id"] is None


def test_shards_are_as_large_as_asked(model, tmp_path):
    save_checkpoint(tmp_path / "m", model, shard_bytes=4000)
    index = json.loads((tmp_path / "m" / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    sizes = [sum(tensor.nbytes for tensor in load_file(tmp_path / "m" / file).values()) for file in files]
    assert max(sizes) <= 4000
    assert index["metadata"]["total_size"] == sum(sizes) == sum(weight.nbytes for weight in model.parameters())


def test_a_checkpoint_is_replaced_as_a_whole(model, tmp_path):
    """Also one whose mapped file holds the very weights that are saved."""
    save_checkpoint(tmp_path / "m", model, shard_bytes=4000, beside={"vocab.txt": b"a"})
    again = load_checkpoint(tmp_path / "m").transformer
    save_checkpoint(tmp_path / "m", again)
    assert sorted(each.name for each in (tmp_path / "m").iterdir()) == ["config.json", "model.safetensors"]
    assert [each.name for each in tmp_path.iterdir()] == ["m"]
    weights = load_checkpoint(tmp_path / "m").transformer.state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("step", ["save_safetensors", "_write_json", "sync_folder"])
def test_what_stands_there_stays_when_saving_fails(step, model, tmp_path, monkeypatch):
    save_checkpoint(tmp_path / "m", model)
    before = {each.name: each.read_bytes() for each in (tmp_path / "m").iterdir()}

    def fail(*args):
        raise OSError("no space left")

    monkeypatch.setattr(saving, step, fail)
    for name in ("m", "new"):
        with pytest.raises(OSError, match="no space left"):
            save_checkpoint(tmp_path / name, build(SMALL, seed=9))
    assert [each.name for each in tmp_path.iterdir()] == ["m"]
    assert {each.name: each.read_bytes() for each in (tmp_path / "m").iterdir()} == before


def test_the_old_folder_comes_back_when_the_new_one_cannot_move(model, tmp_path, monkeypatch):
    save_checkpoint(tmp_path / "m", model)
    rename = saving.os.rename

    def fail_for_the_new(source, target):
        if str(source).endswith(".tmp"):
            raise OSError("busy")
        rename(source, target)

    monkeypatch.setattr(saving.os, "rename", fail_for_the_new)
    with pytest.raises(OSError, match="busy"):
        save_checkpoint(tmp_path / "m", model)
    assert [each.name for each in tmp_path.iterdir()] == ["m"]
    assert load_checkpoint(tmp_path / "m").config.d_model == 12


@pytest.mark.parametrize("foreign", ["notes.txt", "pytorch_model.bin", ".git"])
def test_a_folder_of_other_things_is_left_alone(foreign, model, tmp_path):
    (tmp_path / foreign).mkdir() if foreign == ".git" else (tmp_path / foreign).write_text("mine")
    with pytest.raises(CheckpointError, match=rf"holds other things .*'{foreign}'"):
        save_checkpoint(tmp_path, model)
    assert [each.name for each in tmp_path.iterdir()] == [foreign]


def test_places_that_cannot_be_written(model, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="found a file"):
        save_checkpoint(tmp_path / "file", model)
    with pytest.raises(CheckpointError, match="does not exist"):
        save_checkpoint(tmp_path / "no" / "m", model)
    with pytest.raises(CheckpointError, match=r"'../x' has no place beside weights"):
        save_checkpoint(tmp_path / "m", model, beside={"../x": b""})


def test_dropout_and_start_are_for_training(tmp_path, model):
    """They do not keep a model from being saved where its family has no field for them."""
    config = replace(ROTARY, dropout=replace(ROTARY.dropout, update=0.1))
    save_checkpoint(tmp_path / "m", build(config, dtype=torch.float32))
    assert load_checkpoint(tmp_path / "m").config == replace(config, dropout=ROTARY.dropout, init=Config.init)


def test_kinds_are_told_apart():
    assert comparable(SMALL) != comparable(replace(SMALL, activation=Gelu()))
    assert comparable(SMALL).positions == Learned()

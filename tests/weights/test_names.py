"""Tables of names, read and written; Hugging Face's classes say what the names are."""

import dataclasses

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from pellucid.model.config import Config, RMSNorm, SwiGLU
from pellucid.model.rotary import Rotary
from pellucid.weights import gpt2, llama
from pellucid.weights.errors import CheckpointError
from pellucid.weights.loading import load_checkpoint
from pellucid.weights.names import clean, plan, write
from pellucid.weights.outline import outline
from pellucid.weights.reading import tie
from pellucid.weights.safetensors_file import save_safetensors

ENDS = {"bos_token_id": 0, "eos_token_id": 0}
IDS = torch.arange(14).reshape(2, 7) % 7
SMALL = Config(vocab_size=7, context_length=8, n_layers=1, d_model=4, n_heads=2)
SMALL_LLAMA = dataclasses.replace(
    SMALL,
    n_kv_heads=1,
    positions=Rotary(),
    norm=RMSNorm(),
    activation=SwiGLU(),
    qkv_bias=False,
    out_bias=False,
    ffn_bias=False,
)


def tiny_gpt2(tied: bool) -> GPT2LMHeadModel:
    torch.manual_seed(5)
    config = GPT2Config(vocab_size=7, n_positions=8, n_embd=4, n_layer=2, n_head=2, tie_word_embeddings=tied, **ENDS)
    return GPT2LMHeadModel(config).eval()


def tiny_llama(tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(6)
    config = LlamaConfig(
        vocab_size=7,
        hidden_size=16,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_bias=True,
        tie_word_embeddings=tied,
        **ENDS,
    )
    return LlamaForCausalLM(config).eval()


def numbered(layout, config: Config) -> dict[str, torch.Tensor]:
    """A file's tensors, of the right names and shapes, with random numbers."""
    state = {name: torch.randn(weight.shape) for name, weight in outline(config).state_dict().items()}
    return clean(layout, write(layout, state, config))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("make", "layout"), [(tiny_gpt2, gpt2.LAYOUT), (tiny_llama, llama.LAYOUT)])
@torch.no_grad()
def test_written_names_load_in_hugging_face(make, layout, tied, tmp_path):
    """The names and shapes of what is written are those of save_pretrained, and the logits survive the round."""
    hf = make(tied)
    for weight in hf.parameters():
        torch.nn.init.normal_(weight)
    hf.save_pretrained(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    written = write(layout, checkpoint.transformer.state_dict(), checkpoint.config)
    saved = load_file(tmp_path / "model.safetensors")
    assert written.keys() == saved.keys()
    assert all(torch.equal(written[name], saved[name]) for name in saved)
    save_safetensors(tmp_path / "model.safetensors", written)
    other, info = type(hf).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert torch.equal(other.eval()(IDS).logits, hf(IDS).logits)
    if not tied:
        make(tied).load_state_dict(written, strict=True)


@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module.", "_orig_mod.module.", "module._orig_mod."])
@torch.no_grad()
def test_ckpt_1_prefixes(prefix, tmp_path):
    hf = tiny_gpt2(True)
    hf.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    plain = load_checkpoint(tmp_path).transformer(IDS)
    save_file({prefix + name: tensor for name, tensor in load_file(file).items()}, file)
    checkpoint = load_checkpoint(tmp_path)
    assert torch.equal(checkpoint.transformer(IDS), plain)
    written = write(gpt2.LAYOUT, checkpoint.transformer.state_dict(), checkpoint.config)
    assert not any("module." in name or "_orig_mod" in name for name in written)


def test_ckpt_1_only_leading_prefixes_are_stripped():
    names = {"module.h.module_list.0.w": 1, "h.0._orig_mod.w": 2, "_orig_mod._orig_mod.x": 3}
    assert clean(gpt2.LAYOUT, names) == {"h.module_list.0.w": 1, "h.0._orig_mod.w": 2, "x": 3}


def test_two_names_that_become_one():
    with pytest.raises(CheckpointError, match=r"wte.weight and module.transformer.wte.weight"):
        clean(gpt2.LAYOUT, {"wte.weight": 1, "module.transformer.wte.weight": 2})


def ckpt_2_files() -> dict[str, dict[str, torch.Tensor]]:
    both = numbered(gpt2.LAYOUT, SMALL)
    others = {name: tensor for name, tensor in both.items() if name != "wte.weight"}
    shared = both["wte.weight"]
    return {
        "wte": both,
        "lm_head": others | {"lm_head.weight": shared},
        "both": both | {"lm_head.weight": shared.clone()},
    }


@pytest.mark.parametrize("side", ["wte", "lm_head", "both"])
def test_ckpt_2_tied_tensors_on_disk(side, tmp_path):
    (tmp_path / "config.json").write_text(
        '{"model_type": "gpt2", "vocab_size": 7, "n_positions": 8, "n_embd": 4, "n_layer": 1, "n_head": 2}'
    )
    tensors = ckpt_2_files()[side]
    alias = {"wte.weight": "lm_head.weight"} if side == "lm_head" else {}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors", alias)
    model = load_checkpoint(tmp_path).transformer
    stored = tensors.get("wte.weight", tensors.get("lm_head.weight"))
    assert model.W_U is model.embed.token.weight
    assert torch.equal(model.embed.token.weight, stored)
    assert (
        sum(weight.numel() for name, weight in model.named_parameters() if "token" in name or "unembed" in name) == 28
    )
    assert not any("unembed" in name for name in model.state_dict())


def test_ckpt_2_copies_that_differ():
    tensors = ckpt_2_files()["both"]
    tensors["lm_head.weight"][6, 3] += 1
    with pytest.raises(CheckpointError, match=r"ties wte.weight and lm_head.weight.*two copies differ"):
        tie(gpt2.LAYOUT, tensors, SMALL)


def test_an_untied_model_without_a_head():
    untied = dataclasses.replace(SMALL, tied=False)
    with pytest.raises(CheckpointError, match=r"1 missing: 'lm_head.weight'"):
        plan(gpt2.LAYOUT, numbered(gpt2.LAYOUT, SMALL), outline(untied))


def test_missing_and_left_over_tensors_are_listed():
    tensors = numbered(gpt2.LAYOUT, SMALL)
    del tensors["ln_f.bias"], tensors["h.0.mlp.c_fc.weight"]
    tensors["score.weight"] = torch.zeros(2, 4)
    with pytest.raises(
        CheckpointError, match=r"2 missing: 'h.0.mlp.c_fc.weight', 'ln_f.bias'; 1 not known: 'score.weight'"
    ):
        plan(gpt2.LAYOUT, tensors, outline(SMALL))


@pytest.mark.parametrize(
    ("layout", "config", "name", "expected"),
    [
        (gpt2.LAYOUT, SMALL, "h.0.attn.c_attn.weight", [4, 12]),
        (gpt2.LAYOUT, SMALL, "h.0.mlp.c_proj.weight", [16, 4]),
        (llama.LAYOUT, SMALL_LLAMA, "layers.0.self_attn.k_proj.weight", [2, 4]),
    ],
)
def test_wrong_shapes_name_tensor_expected_and_got(layout, config, name, expected):
    tensors = numbered(layout, config)
    tensors[name] = torch.zeros(5, 3)
    with pytest.raises(CheckpointError) as error:
        plan(layout, tensors, outline(config))
    assert f"{name} must have shape {expected}, got [5, 3]" in str(error.value)


def test_a_weight_the_layout_has_no_place_for():
    with pytest.raises(CheckpointError, match=r"GPT-2 layout has no place for blocks.0.ffn.gate.weight"):
        write(gpt2.LAYOUT, {"blocks.0.ffn.gate.weight": torch.zeros(2, 2)}, SMALL)

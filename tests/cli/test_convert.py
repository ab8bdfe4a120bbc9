"""`pellucid convert`, held against Hugging Face and the gguf package."""

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM, MistralForCausalLM

from pellucid.weights.loading import load_checkpoint

IDS = torch.arange(8)[None]


@torch.no_grad()
def test_folder_to_folder(ask, oracle, tmp_path):
    """The weights, the ends of a text and the tokenizer's files."""
    model, tokenizer, folder = oracle
    found = ask("convert", folder, tmp_path / "m")
    assert (found["layout"], found["type"]) == ("llama", "float32")
    assert found["parameters"] == sum(weight.numel() for weight in model.parameters())
    assert "tokenizer.json" in found["tokenizer"]
    other = LlamaForCausalLM.from_pretrained(tmp_path / "m").eval()
    assert torch.equal(other(IDS).logits, model(IDS).logits)
    assert other.config.eos_token_id == model.config.eos_token_id
    words = type(tokenizer).from_pretrained(tmp_path / "m")
    assert words.encode("The capital of France") == tokenizer.encode("The capital of France")


@torch.no_grad()
def test_another_layout_and_type(call, oracle, tmp_path):
    model, _, folder = oracle
    code, out, err = call("convert", folder, tmp_path / "m", "--layout", "mistral", "--type", "bf16")
    assert (code, err) == (0, "")
    assert "mistral, bfloat16" in out
    other = MistralForCausalLM.from_pretrained(tmp_path / "m", dtype="auto").eval()
    assert other.config.sliding_window is None
    assert torch.equal(other.model.norm.weight, model.model.norm.weight.bfloat16())


@torch.no_grad()
def test_to_gguf_and_back(ask, oracle, tmp_path):
    model, _, folder = oracle
    assert ask("convert", folder, tmp_path / "m.gguf")["type"] == "f32"
    assert ask("convert", tmp_path / "m.gguf", tmp_path / "back")["layout"] == "llama"
    found = ask("convert", folder, tmp_path / "small.gguf", "--type", "f16")
    other = LlamaForCausalLM.from_pretrained(tmp_path / "back").eval()
    assert (other(IDS).logits - model(IDS).logits).abs().max() <= 2e-5 * model(IDS).logits.abs().max()
    assert (found["layout"], found["type"], found["tokenizer"]) == ("llama", "f16", [])
    (values,) = (t for t in gguf.GGUFReader(tmp_path / "small.gguf").tensors if t.name == "output.weight")
    assert np.array_equal(values.data, model.lm_head.weight.half().numpy())


def test_a_gguf_keeps_its_tokenizer(ask, oracle, tmp_path):
    from pellucid.weights.gguf_saving import save_gguf

    _, _, folder = oracle
    words = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b"], "general.name": "tiny"}
    save_gguf(tmp_path / "a.gguf", load_checkpoint(folder).transformer, type="f32", metadata=words)
    found = ask("convert", tmp_path / "a.gguf", tmp_path / "b.gguf", "--type", "f32")
    assert found["tokenizer"] == ["tokenizer.ggml.model", "tokenizer.ggml.tokens"]
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{folder}", "{tmp}/m", "--type", "q4"], "no type 'q4', only f32, f16, bf16, q8_0"),
        (["{folder}", "{tmp}/m", "--type", "q8_0"], "q8_0 is a type of .gguf files"),
        (["{folder}", "{tmp}/m.gguf", "--layout", "llama"], "--layout is for folders"),
        (["{folder}", "{tmp}/m", "--layout", "bert"], "the bert layout has no place for"),
        (["{folder}", "{tmp}/m", "--layout", "gpt5"], "no layout 'gpt5', only gpt2, llama"),
        (["{folder}", "{tmp}/no/m"], "does not exist. Make it first"),
        (["{folder}", "{tmp}"], "holds other things than a checkpoint's files"),
        (["{tmp}/nothing", "{tmp}/m"], "no model"),
    ],
)
def test_errors_are_one_line(words, message, call, oracle, tmp_path):
    (tmp_path / "notes").write_text("mine")
    code, out, err = call("convert", *(word.format(folder=oracle[2], tmp=tmp_path) for word in words))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert [each.name for each in tmp_path.iterdir()] == ["notes"]

"""The real thing: SmolLM2-135M-Instruct, from the file that the package index serves."""

import inspect
import math
import statistics
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid.front import Model

pytestmark = pytest.mark.slow

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Model:
    return pellucid.load(smollm2_path)


def test_it_continues_with_paris(model):
    found = model.generate(PROMPT, max_new_tokens=8)
    assert found.text.startswith(" Paris")
    assert model.budget().total == 134_515_008


def test_its_chat_answers(model):
    ids = model.encode_chat([{"role": "user", "content": "What is the capital of France? Answer in one word."}])
    found = model.generate(ids, max_new_tokens=24)
    assert "Paris" in found.text
    assert found.finish_reason == "stop"


@pytest.mark.parametrize("by", ["sublayer", "head"])
def test_its_ledger_adds_up(model, by):
    ledger = model.trace(PROMPT).ledger(" Paris", minus=" London", by=by)
    assert abs(ledger.remainder) < 1e-4
    assert ledger.value > 0


def test_its_lens_ends_in_paris(model):
    table = model.trace(PROMPT).lens()
    assert len(table) == 31
    assert "Paris" in table.rows[-1][2]
    assert table.rows[0][4] < 0.01 < table.rows[-1][4]


def test_the_trace_of_what_it_wrote(model):
    found = model.generate(PROMPT, max_new_tokens=6, trace=True)
    whole = model.trace([*found.prompt_ids, *found.ids])
    for name in ("0.stream", "15.attention.pattern", "30.stream", "logits"):
        scale = float(whole[name].abs().max())
        assert float((found.trace[name] - whole[name]).abs().max()) <= 5e-6 * scale, name


def reference(path: Path):
    """Hugging Face's Llama with the weights that the gguf package dequantizes; q and k rows put back half by half."""
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from transformers import LlamaConfig, LlamaForCausalLM

    names = {
        "token_embd": "model.embed_tokens", "output_norm": "model.norm", "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    weights = {}
    for tensor in GGUFReader(path).tensors:
        value = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        *block, kind, _ = tensor.name.split(".")
        if kind in ("attn_q", "attn_k"):
            rows, width = value.shape
            value = value.view(rows // 64, 32, 2, width).transpose(1, 2).reshape(rows, width)
        prefix = f"model.layers.{block[1]}." if block else ""
        weights[f"{prefix}{names[kind]}.weight"] = value
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    )  # fmt: skip
    llama = LlamaForCausalLM(config).eval()
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    llama.load_state_dict(weights, strict=True)
    return llama


def test_its_loss_on_a_real_text_is_the_reference_implementations(model, smollm2_path):
    text = inspect.getdoc(statistics) + "\n" + inspect.getsource(statistics.mean)
    ids = torch.tensor([model.encode(text)[:384]])
    theirs = reference(smollm2_path)
    with torch.no_grad():
        logits, expected = model.transformer(ids), theirs(ids).logits
    losses = [torch.nn.functional.cross_entropy(z[0, :-1], ids[0, 1:]).item() for z in (logits, expected)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert losses[0] < math.log(49152) / 2
    assert float((logits - expected).abs().max()) <= 2e-5 * float(expected.abs().max())

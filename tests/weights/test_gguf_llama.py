"""Llama in GGUF: files written with the gguf package, held against Hugging Face's model with the same weights."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from gguf.quants import dequantize, quantize
from transformers import LlamaConfig, LlamaForCausalLM

from pellucid.weights.errors import CheckpointError
from pellucid.weights.loading import load_checkpoint

QUANTS = gguf.GGMLQuantizationType
IDS = torch.arange(60).reshape(2, 30) * 11 % 37
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny(**fields) -> LlamaForCausalLM:
    torch.manual_seed(7)
    sizes = {
        "vocab_size": 37,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 16,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    model = LlamaForCausalLM(LlamaConfig(**(sizes | fields))).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model


def file_name(name: str) -> str:
    """The GGUF name of a Hugging Face name."""
    stem, kind = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{NAMES[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.{kind}"


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Half-split rows to neighbouring pairs: row i and row i + K/2 become rows 2i and 2i + 1."""
    half = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return half.swapaxes(1, 2).reshape(weight.shape)


def save(path: Path, model: LlamaForCausalLM, quant=QUANTS.F32, extra=None, tensors=None) -> None:
    """Write the model as GGUF; where weights are quantized, give the model what they become."""
    config = model.config
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    for name, value in (extra or {}).items():
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32, list: writer.add_array}
        add[type(value)](name, value)
    for name, weight in model.named_parameters():
        values = weight.detach().numpy()
        if weight.ndim == 2:
            raw = quantize(values, quant)
            values = dequantize(raw, quant)
            weight.data = torch.from_numpy(values.copy())
        if "q_proj" in name or "k_proj" in name:
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values = interleave(values, heads)
        if weight.ndim == 2 and quant != QUANTS.F32:
            writer.add_tensor(file_name(name), quantize(values, quant), raw_dtype=quant)
        else:
            writer.add_tensor(file_name(name), np.ascontiguousarray(values))
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@torch.no_grad()
def assert_same_logits(model, path: Path) -> None:
    ours, theirs = load_checkpoint(path).transformer(IDS), model(IDS).logits
    assert ours.dtype == torch.float32
    assert (ours - theirs).abs().max() <= 2e-5 * theirs.abs().max()


@pytest.mark.parametrize("quant", [QUANTS.F32, QUANTS.F16, QUANTS.BF16, QUANTS.Q8_0, QUANTS.Q4_1], ids=lambda q: q.name)
@pytest.mark.parametrize("tied", [True, False])
def test_arch_2_rope_layout_logits(quant, tied, tmp_path):
    """Rows of queries and keys stand interleaved in the file and half-split in the model."""
    model = tiny(tie_word_embeddings=tied)
    save(tmp_path / "m.gguf", model, quant)
    assert_same_logits(model, tmp_path / "m.gguf")


def test_biases_and_head_width(tmp_path):
    model = tiny(attention_bias=True, mlp_bias=True, head_dim=10)
    extra = {"llama.attention.key_length": 10, "llama.attention.value_length": 10, "llama.rope.dimension_count": 10}
    save(tmp_path / "m.gguf", model, extra=extra)
    assert_same_logits(model, tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("parameters", "extra"),
    [
        (
            {"rope_type": "linear", "factor": 2.0},
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0},
        ),
        ({"rope_type": "linear", "factor": 2.0}, {"llama.rope.scale_linear": 2.0}),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 16,
            },
        ),
        ({"rope_type": "default"}, {"llama.rope.scaling.type": "none"}),
    ],
    ids=str,
)
def test_rope_scalings(parameters, extra, tmp_path):
    model = tiny(rope_parameters={"rope_theta": 100.0, **parameters})
    save(tmp_path / "m.gguf", model, extra=extra)
    assert_same_logits(model, tmp_path / "m.gguf")


def test_rope_factors_of_llama_3(tmp_path):
    """Llama 3's bands come as one divisor for each pair."""
    llama3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    model = tiny(rope_parameters={"rope_theta": 100.0, "original_max_position_embeddings": 16, **llama3})
    plain = 100.0 ** (-torch.arange(0, 8, 2) / 8)
    factors = (plain / model.model.rotary_emb.inv_freq).numpy()
    assert factors.max() == pytest.approx(4.0)
    save(tmp_path / "m.gguf", model, tensors={"rope_freqs.weight": factors.astype(np.float32)})
    assert_same_logits(model, tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"llama.expert_count": 8}, "llama.expert_count=8 is not supported"),
        ({"llama.attention.sliding_window": 4}, "llama.attention.sliding_window=4"),
        ({"llama.attention.clamp_kqv": 1.5}, "unknown fields.*llama.attention.clamp_kqv=1.5"),
        ({"llama.rope.dimension_count": 4}, "llama.rope.dimension_count=4"),
        ({"llama.vocab_size": 99}, "llama.vocab_size=99"),
        ({"llama.rope.scaling.type": "longrope"}, "rope scaling 'longrope' is not known"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": "2"}, "factor must be a number"),
    ],
)
def test_fields_that_are_refused_by_name(extra, message, tmp_path):
    save(tmp_path / "m.gguf", tiny(), extra=extra)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path / "m.gguf")


def test_a_vocabulary_larger_than_the_embedding(tmp_path):
    save(tmp_path / "m.gguf", tiny(), extra={"tokenizer.ggml.tokens": ["a"] * 38})
    with pytest.raises(CheckpointError, match="has 37 rows, fewer than the vocabulary's 38 tokens"):
        load_checkpoint(tmp_path / "m.gguf")


def test_ids_that_start_and_end_a_text(tmp_path):
    model = tiny()
    save(tmp_path / "none.gguf", model)
    assert load_checkpoint(tmp_path / "none.gguf").generation == {}
    ids = {"bos": 1, "eos": 2, "eot": 3, "eom": 2}
    save(tmp_path / "m.gguf", model, extra={f"tokenizer.ggml.{key}_token_id": id for key, id in ids.items()})
    assert load_checkpoint(tmp_path / "m.gguf").generation == {"bos_token_id": 1, "eos_token_id": [2, 3]}


def test_numbers_of_single_layers(tmp_path):
    """Some files give a number for each layer; only equal ones fit."""
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_block_count(2)
    writer.add_context_length(16)
    writer.add_embedding_length(32)
    writer.add_head_count(4)
    writer.add_head_count_kv([2, 4])
    writer.add_tensor("token_embd.weight", np.zeros((3, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"head_count_kv must be a whole number, got \[2, 4\]"):
        load_checkpoint(tmp_path / "m.gguf")


def test_tensors_that_do_not_fit_are_listed(tmp_path):
    save(tmp_path / "m.gguf", tiny(), tensors={"rope_factors_long.weight": np.ones(4, np.float32)})
    with pytest.raises(CheckpointError, match=r"1 not known: 'rope_factors_long.weight'"):
        load_checkpoint(tmp_path / "m.gguf")


def test_another_architecture_is_refused_by_name(tmp_path):
    writer = GGUFWriter(tmp_path / "m.gguf", "qwen2")
    writer.add_tensor("token_embd.weight", np.zeros((3, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match="architecture 'qwen2' is not one that is read here: llama"):
        load_checkpoint(tmp_path / "m.gguf")


def test_an_explicit_precision(tmp_path):
    model = tiny()
    save(tmp_path / "m.gguf", model)
    weights = load_checkpoint(tmp_path / "m.gguf", dtype="bfloat16").transformer.state_dict()
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert torch.equal(weights["embed.token.weight"], model.model.embed_tokens.weight.bfloat16())


@pytest.fixture(scope="module")
def smollm2(smollm2_path):
    return load_checkpoint(smollm2_path)


def test_cnt_1_smollm2(smollm2):
    assert sum(weight.numel() for weight in smollm2.transformer.parameters()) == 134515008
    assert smollm2.config.tied


@pytest.mark.slow
def test_smollm2_weights_are_those_of_the_file(smollm2, smollm2_path):
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(smollm2_path).tensors}

    def numbers(name: str) -> torch.Tensor:
        tensor = stored[name]
        return torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())

    weights = smollm2.transformer.state_dict()
    assert torch.equal(weights["blocks.17.ffn.down.weight"], numbers("blk.17.ffn_down.weight"))
    assert torch.equal(weights["embed.token.weight"][::997], numbers("token_embd.weight")[::997])
    query, key, value = weights["blocks.3.attention.qkv.weight"].split((576, 192, 192))
    assert torch.equal(torch.from_numpy(interleave(query.numpy(), 9)), numbers("blk.3.attn_q.weight"))
    assert torch.equal(torch.from_numpy(interleave(key.numpy(), 3)), numbers("blk.3.attn_k.weight"))
    assert torch.equal(value, numbers("blk.3.attn_v.weight"))


@torch.no_grad()
def test_smollm2_knows_the_capital_of_france(smollm2):
    tokens = smollm2.gguf_metadata["tokenizer.ggml.tokens"]
    prompt = [tokens.index(token) for token in ("The", "Ġcapital", "Ġof", "ĠFrance", "Ġis")]
    assert tokens[int(smollm2.transformer(torch.tensor([prompt]))[0, -1].argmax())] == "ĠParis"

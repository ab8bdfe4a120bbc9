"""A tiny random Llama of Hugging Face's, and its weights as Meta names them, with rows for rotation of neighbours."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

IDS = torch.arange(60).reshape(2, 30) * 11 % 37
PARTS = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
}


def tiny_llama(**fields) -> LlamaForCausalLM:
    """V 37, width 32, 2 layers, 4 heads of 8, 2 key-value heads, FFN 44, eps 1e-5."""
    torch.manual_seed(7)
    sizes = {
        "vocab_size": 37,
        "hidden_size": 32,
        "intermediate_size": 44,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    model = LlamaForCausalLM(LlamaConfig(**(sizes | fields))).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model


def paired(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Row i and row i + K/2 of each head become its rows 2i and 2i + 1."""
    halves = weight.reshape(heads, 2, -1, weight.shape[1])
    return torch.stack((halves[:, 0], halves[:, 1]), dim=2).reshape(weight.shape)


def meta_weights(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """The model's weights under Meta's names; a tied one has no output.weight."""
    config = model.config
    plain = {name.removeprefix("model."): weight.detach() for name, weight in model.named_parameters()}
    found = {"tok_embeddings.weight": plain["embed_tokens.weight"], "norm.weight": plain["norm.weight"]}
    if not config.tie_word_embeddings:
        found["output.weight"] = plain["lm_head.weight"]
    for layer in range(config.num_hidden_layers):
        for theirs, metas in PARTS.items():
            weight = plain[f"layers.{layer}.{theirs}.weight"]
            if theirs.endswith("q_proj"):
                weight = paired(weight, config.num_attention_heads)
            if theirs.endswith("k_proj"):
                weight = paired(weight, config.num_key_value_heads)
            found[f"layers.{layer}.{metas}.weight"] = weight.contiguous()
    return found


@torch.no_grad()
def assert_same_logits(model: LlamaForCausalLM, transformer: torch.nn.Module, ids: torch.Tensor = IDS) -> None:
    ours, theirs = transformer(ids), model(ids).logits
    assert (ours - theirs).abs().max() <= 2e-5 * theirs.abs().max()


def assert_same_weights(model: LlamaForCausalLM, transformer: torch.nn.Module) -> None:
    """Bit by bit, queries and keys too: half-split rows are Hugging Face's own."""
    ours = transformer.state_dict()
    for layer in range(model.config.num_hidden_layers):
        theirs = model.model.layers[layer]
        attention = theirs.self_attn
        qkv = torch.cat((attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight))
        block = f"blocks.{layer}"
        assert torch.equal(ours[f"{block}.attention.qkv.weight"], qkv)
        assert torch.equal(ours[f"{block}.attention.out.weight"], attention.o_proj.weight)
        assert torch.equal(ours[f"{block}.attention.norm.weight"], theirs.input_layernorm.weight)
        assert torch.equal(ours[f"{block}.ffn.norm.weight"], theirs.post_attention_layernorm.weight)
        assert torch.equal(ours[f"{block}.ffn.gate.weight"], theirs.mlp.gate_proj.weight)
        assert torch.equal(ours[f"{block}.ffn.up.weight"], theirs.mlp.up_proj.weight)
        assert torch.equal(ours[f"{block}.ffn.down.weight"], theirs.mlp.down_proj.weight)
    assert torch.equal(ours["embed.token.weight"], model.model.embed_tokens.weight)
    assert torch.equal(ours["final_norm.weight"], model.model.norm.weight)
    assert ("unembed.weight" in ours) == (not model.config.tie_word_embeddings)
    if "unembed.weight" in ours:
        assert torch.equal(ours["unembed.weight"], model.lm_head.weight)

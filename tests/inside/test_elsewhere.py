"""The names of other libraries: each of Hugging Face's is the output of that module; TransformerLens's cover all."""

import pytest
import torch
import transformers
from hypothesis import given

from pellucid.inside.elsewhere import hugging_face_names, names_table, transformer_lens_names
from pellucid.inside.errors import SiteError
from pellucid.inside.renamed import renamed
from pellucid.inside.trace import trace
from pellucid.model.config import PostNorm
from pellucid.model.sites import sites
from pellucid.weights.loading import load_checkpoint
from tiny import build, configs, random_ids, tiny_gpt2, traced, with_encoder

SIZES = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
WIDE = {**SIZES, "intermediate_size": 20, "max_position_embeddings": 16}
FAMILIES = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=30, n_embd=16, n_layer=2, n_head=4, n_positions=16)
    ),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**WIDE, num_key_value_heads=2)),
    "gpt_neox": lambda: transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(**{**WIDE, "num_attention_heads": 2})
    ),
    "bert": lambda: transformers.BertForPreTraining(transformers.BertConfig(**WIDE)),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_hugging_face_name_is_the_module_whose_output_the_site_is(family, tmp_path):
    torch.manual_seed(0)
    theirs = FAMILIES[family]().eval()
    for weight in theirs.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    theirs.save_pretrained(tmp_path)
    model = load_checkpoint(tmp_path).transformer
    outputs: dict[str, torch.Tensor] = {}
    for name, module in theirs.named_modules():
        module.register_forward_hook(
            lambda _, __, out, name=name: outputs.update({name: out[0] if isinstance(out, tuple) else out})
        )
    ids = random_ids(2, 5) % 30
    with torch.no_grad():
        theirs(ids)
    found = renamed(trace(model, ids), family)
    assert {site for site, _ in found.lines.values()} >= {"embed.token", "1.ffn.up", "2.stream", "logits"}
    for name, value in found.items():
        torch.testing.assert_close(value, outputs[name].expand_as(value), atol=2e-5, rtol=2e-5, msg=name)


@pytest.mark.slow
@given(configs("decoder"))
def test_transformer_lens_names_cover_the_sites_of_a_pre_norm_model(config):
    if isinstance(config.block, PostNorm):
        with pytest.raises(SiteError, match="pre-norm"):
            transformer_lens_names(config)
        return
    run = traced(build(config), random_ids(2, 5))
    found = renamed(run)
    without = ("embed.type", "embed.sum", "pooled", "head.")  # BERT's parts
    expected = {site.name for site in sites(config) if not site.name.startswith(without)}
    assert {site for site, _ in found.lines.values()} == expected
    for name, value in found.items():
        site, kept = found.lines[name]
        torch.testing.assert_close(value, 1 / run[site].unsqueeze(-1) if kept else run[site])
        with pytest.raises(SiteError, match=r"TransformerLens's name for '(\d\.)?[a-z.]+'"):
            run[name]


def test_names_as_transformer_lens_4_3_has_them():
    """Read off its run_with_cache of these models, where the values were equal too (bench/agreement.py)."""
    names = transformer_lens_names(tiny_gpt2().config)
    assert names["blocks.1.attn.hook_pattern"] == ("1.attention.pattern", "")
    assert names["blocks.0.ln1.hook_scale"] == ("0.attention.input.scale", "1/")
    assert names["blocks.1.hook_resid_post"][0] == "2.stream"
    assert names["blocks.0.mlp.hook_pre"][0] == "0.ffn.up"


def test_tables_and_what_has_none():
    table = names_table(tiny_gpt2().config)
    assert ("0.attention.input.scale", "blocks.0.ln1.hook_scale", "1 / ours") in table.rows
    assert names_table(tiny_gpt2().config, "gpt2").rows[0][:2] == ("embed.token", "transformer.wte")
    with pytest.raises(SiteError, match="gpt2, llama, gpt_neox, bert, got 'opt'"):
        hugging_face_names(tiny_gpt2().config, "opt")
    with pytest.raises(SiteError, match="without an encoder"):
        transformer_lens_names(with_encoder(tiny_gpt2().config))

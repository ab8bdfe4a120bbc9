"""What neurons read and promote by their weights, against the ledger of a run and the model's own layers."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

from pellucid.inside.neuron_weights import promoted, promoting, reads, write_norm, writes
from pellucid.model.config import Config, Init, LayerNorm, MaskedLanguage, PostNorm, PreNorm, RMSNorm, SwiGLU
from tiny import VOCAB, build, configs, random_ids, tiny_gpt2, traced


def effects(model, layer, neuron) -> dict[int, float]:
    """What a neuron does to each token, from both halves of its table."""
    rows = promoted(model, layer, neuron, VOCAB).rows
    up, down = ({int(row[at]): row[at + 1] for row in rows} for at in (1, 3))
    assert up == down
    assert [row[2] for row in rows] == sorted(up.values(), reverse=True)
    assert [row[4] for row in rows] == sorted(up.values())
    return up


@pytest.mark.slow
@settings(max_examples=8)
@given(configs().filter(lambda config: not isinstance(config.head, MaskedLanguage)))
def test_values_times_effects_are_the_layers_entry_in_the_ledger(config):
    """Up to the scales of the norms that a write passes, which the weights alone do not know."""
    model = build(replace(config, ffn_bias=False))
    found, layer, token = traced(model, random_ids(2, 4)), config.n_layers - 1, 7
    prefix = model.prefix
    values = found[f"{prefix}{layer}.ffn.neurons"][1, -1]
    scale = found[f"{prefix}{layer}.ffn.sum.scale"][1, -1] if f"{prefix}{layer}.ffn.sum.scale" in found.names else 1.0
    scale *= found[f"{prefix}final.scale"][1, -1] if f"{prefix}final.scale" in found.names else 1.0
    entry = dict(found.ledger(token, row=1).entries)[f"{prefix}{layer}.ffn"]
    total = sum(value * effects(model, layer, neuron)[token] for neuron, value in enumerate(values.tolist()))
    assert float(total * scale) == pytest.approx(entry, abs=1e-10)


@settings(max_examples=6)
@given(configs())
def test_writes_and_the_bias_are_the_update(config):
    """Case of the key-value memories (Geva et al. 2021): FFN(x) = sum of m_i W_down[i] + b_down."""
    model = build(config)
    found, site = traced(model, random_ids(2, 3)), f"{model.prefix}0.ffn"
    total = found[f"{site}.neurons"] @ writes(model, 0)
    bias = model.blocks[0].ffn.down.bias
    torch.testing.assert_close(total if bias is None else total + bias, found[f"{site}.update"])


@pytest.mark.parametrize("post", [False, True])
def test_an_earlier_layers_write_passes_every_norm_behind_it(post):
    model = tiny_gpt2(block=PostNorm() if post else PreNorm(), ffn_bias=False)
    found = traced(model, random_ids(1, 3))
    values, entry = found["0.ffn.neurons"][0, -1], dict(found.ledger(3).entries)["0.ffn"]
    passed = ("0.ffn.sum.scale", "1.attention.sum.scale", "1.ffn.sum.scale") if post else ("final.scale",)
    scale = torch.stack([found[name][0, -1] for name in passed]).prod()
    total = sum(value * effects(model, 0, neuron)[3] for neuron, value in enumerate(values.tolist()))
    assert float(total * scale) == pytest.approx(entry, abs=1e-10)


def test_the_neurons_that_promote_a_token_are_found_in_all_layers():
    model = tiny_gpt2(d_ff=12)
    rows = promoting(model, 5, k=24).rows
    expected = {(layer, neuron): effects(model, layer, neuron)[5] for layer in range(2) for neuron in range(12)}
    assert {row[:2]: row[2] for row in rows} == pytest.approx(expected)
    assert [row[2] for row in rows] == pytest.approx(sorted(expected.values(), reverse=True))
    for layer, neuron, *_, norm, _cosine in rows:
        assert norm == pytest.approx(write_norm(model, layer, neuron))
    over = {row[:2]: row[2] for row in promoting(model, 5, k=24, minus=6).rows}
    assert over == pytest.approx({at: expected[at] - effects(model, *at)[6] for at in expected})
    layer, neuron, *_, cosine = rows[0]
    direction = traced(model, random_ids(1, 2)).direction(5)  # the same up to the final norm's scale
    found = torch.cosine_similarity(model.blocks[layer].ffn.down.weight[:, neuron], direction, dim=0)
    assert cosine == pytest.approx(float(found))


@pytest.mark.parametrize("norm", [RMSNorm(), LayerNorm(bias=False)])
def test_a_gated_neuron_reads_by_its_gate_and_by_its_up_projection(norm):
    model = build(Config(VOCAB, 16, 2, 24, 3, activation=SwiGLU(), norm=norm, ffn_bias=False, init=Init(0.4)))
    rows, ffn = reads(model, 1, 9, VOCAB).rows, model.blocks[1].ffn
    x = model.embed.words[None]
    scale, normed = ffn.norm.scale(x)[0], ffn.norm(x)[0]
    for at, matrix in ((1, ffn.gate), (3, ffn.up)):
        fit = torch.tensor([row[at + 1] for row in sorted(rows, key=lambda row: int(row[at]))], dtype=torch.float64)
        torch.testing.assert_close(fit * scale, matrix(normed)[:, 9])
        assert [row[at + 1] for row in rows] == sorted(fit.tolist(), reverse=True)
    assert reads(model, 1, 9, 3).columns == ("rank", "read by gate", "fit", "read by up", "fit ")
    assert reads(tiny_gpt2(), 1, 9, 3).columns == ("rank", "read by up", "fit")


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda model: promoted(model, 2, 0), r"layers 0\.\.1, got 2"),
        (lambda model: promoted(model, 0, 128), r"neurons 0\.\.127, got 128"),
        (lambda model: promoted(model, 0, 0, k=51), r"k must lie in 1\.\.50"),
        (lambda model: promoting(model, " Paris"), "no tokenizer"),
        (lambda model: promoting(model, 50), r"0\.\.49, got 50"),
        (lambda model: promoted(tiny_gpt2(head=MaskedLanguage()), 0, 0), "linear in the final stream"),
    ],
)
def test_what_is_not_there(ask, said):
    with pytest.raises(ValueError, match=said):
        ask(tiny_gpt2())

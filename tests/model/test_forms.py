"""Forms without public weights: GPT-3's bands and PaLM, by reduction to known cases and by the paper's formula."""

import math

import torch

from pellucid.model.config import Causal, Config, FanIn, Init, LayerNorm, Parallel, SwiGLU, Window
from pellucid.model.rotary import Rotary
from pellucid.model.transformer import Transformer
from tiny import VOCAB, build, random_ids, tiny_gpt2


def test_gpt_3_with_bands_as_wide_as_the_text_is_gpt_2():
    gpt2, ids = tiny_gpt2(n_layers=4), random_ids(2, 12)
    for width, same in ((12, True), (40, True), (11, False), (3, False)):
        banded = tiny_gpt2(n_layers=4, masks=(Causal(), Window(width)))
        banded.load_state_dict(gpt2.state_dict())
        assert torch.equal(banded(ids), gpt2(ids)) == same
    # A band hides what is further away, and even layers stay dense.
    banded = tiny_gpt2(n_layers=1, masks=(Window(3),))
    changed = ids.clone()
    changed[:, 0] = (ids[:, 0] + 1) % VOCAB
    torch.testing.assert_close(banded(ids)[:, 3:], banded(changed)[:, 3:], atol=1e-13, rtol=0)
    assert (banded(ids)[:, 2] - banded(changed)[:, 2]).abs().max() > 1e-3


PALM = Config(
    VOCAB, 32, 2, 24, 4, n_kv_heads=1, d_head=8, d_ff=96, positions=Rotary(), norm=LayerNorm(1e-6, bias=False),
    activation=SwiGLU(), block=Parallel(1), qkv_bias=False, out_bias=False, ffn_bias=False, logit_scale=24**-0.5,
    init=Init(0.4),
)  # fmt: skip


def test_palm_is_its_papers_formula():
    """y = x + MLP(LN x) + Attn(LN x), one key-value head, logits / sqrt(d) (Chowdhery et al. 2022)."""
    model, ids = build(PALM), random_ids(1, 7)
    w, x = model.state_dict(), model.embed.words[ids[0]]

    def norm(name, x):
        y = x - x.mean(-1, keepdim=True)
        return w[name] * y / (y.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()

    def turned(q):
        out = torch.empty_like(q)
        for t in range(len(q)):
            for i in range(4):
                angle = t * 10000 ** (-2 * i / 8)
                a, b = q[t, i], q[t, i + 4]
                out[t, i] = a * math.cos(angle) - b * math.sin(angle)
                out[t, i + 4] = b * math.cos(angle) + a * math.sin(angle)
        return out

    for layer in range(2):
        block = f"blocks.{layer}."
        y = norm(block + "norm.weight", x)
        qkv = y @ w[block + "attention.qkv.weight"].T
        key, value = turned(qkv[:, 32:40]), qkv[:, 40:48]
        mask = torch.full((7, 7), -torch.inf, dtype=torch.float64).triu(1)
        heads = [
            (turned(qkv[:, 8 * h : 8 * h + 8]) @ key.T / math.sqrt(8) + mask).softmax(-1) @ value for h in range(4)
        ]
        gate = y @ w[block + "ffn.gate.weight"].T
        mlp = (y @ w[block + "ffn.up.weight"].T * gate * torch.sigmoid(gate)) @ w[block + "ffn.down.weight"].T
        x = x + mlp + torch.cat(heads, -1) @ w[block + "attention.out.weight"].T
    logits = norm("final_norm.weight", x) @ model.embed.words.T / math.sqrt(24)
    torch.testing.assert_close(model(ids)[0], logits, atol=1e-11, rtol=1e-11)


def test_palm_starts_by_fan_in():
    torch.manual_seed(0)
    model = Transformer(Config(500, 16, 1, 256, 4, d_ff=512, init=FanIn())).requires_grad_(False)
    assert abs(float(model.embed.words.std()) - 1) < 0.02
    assert abs(float(model.blocks[0].ffn.up.weight.std()) * 256**0.5 - 1) < 0.02
    assert abs(float(model.blocks[0].ffn.down.weight.std()) * 512**0.5 - 1) < 0.02

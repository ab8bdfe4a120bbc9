"""Tiny random models, and random configs for property tests."""

import torch
from hypothesis import strategies as st

from pellucid.model.config import Config, Gelu, GeluTanh, Init, LayerNorm, Learned, Relu, RMSNorm, SwiGLU
from pellucid.model.rotary import Linear, Llama3, Rotary, Yarn
from pellucid.model.transformer import Transformer

VOCAB = 50
CONTEXT = 32

SCALINGS = (
    None,
    Linear(2.0),
    Yarn(4.0, 16),
    Llama3(4.0, 1.0, 4.0, 16),
)


@st.composite
def configs(draw) -> Config:
    groups = draw(st.sampled_from([1, 2, 3]))
    heads = groups * draw(st.sampled_from([1, 2]))
    d_head = draw(st.sampled_from([4, 8, 12]))
    rotary = st.builds(
        Rotary, st.sampled_from([100.0, 10000.0]), st.sampled_from([0.5, 1.0]), st.sampled_from(SCALINGS)
    )
    return Config(
        vocab_size=VOCAB,
        context_length=CONTEXT,
        n_layers=draw(st.integers(1, 3)),
        d_model=draw(st.sampled_from([12, 24])),
        n_heads=heads,
        n_kv_heads=groups,
        d_head=d_head,
        d_ff=draw(st.sampled_from([8, 20])),
        positions=draw(st.one_of(st.just(Learned()), rotary)),
        norm=draw(st.sampled_from([LayerNorm(), LayerNorm(1e-3, bias=False), RMSNorm()])),
        activation=draw(st.sampled_from([Gelu(), GeluTanh(), Relu(), SwiGLU()])),
        qkv_bias=draw(st.booleans()),
        out_bias=draw(st.booleans()),
        ffn_bias=draw(st.booleans()),
        tied=draw(st.booleans()),
        attention_scales=draw(st.sampled_from([(), (0.3,)])),
        embedding_scale=draw(st.sampled_from([1.0, 2.5])),
        logit_scale=draw(st.sampled_from([1.0, 0.5])),
        init=Init(0.4),
    )


def build(config: Config, seed: int = 0, dtype: torch.dtype = torch.float64) -> Transformer:
    """A random model in which nothing is at its start value: gains and biases too."""
    torch.manual_seed(seed)
    transformer = Transformer(config).to(dtype).eval()
    with torch.no_grad():
        for weight in transformer.parameters():
            if weight.ndim == 1:
                weight.add_(0.3 * torch.randn_like(weight))
    return transformer.requires_grad_(False)


def random_ids(rows: int, columns: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, VOCAB, (rows, columns), generator=torch.Generator().manual_seed(seed))


def tiny_gpt2(dtype: torch.dtype = torch.float64, **changes) -> Transformer:
    """V 50, context 16, width 32, 2 layers, 4 heads, std 0.5, seed 0."""
    settings = {"vocab_size": 50, "context_length": 16, "n_layers": 2, "d_model": 32, "n_heads": 4, "init": Init(0.5)}
    return build(Config(**(settings | changes)), dtype=dtype)

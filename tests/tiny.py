"""Tiny random models, and random configs for property tests."""

from dataclasses import replace

import torch
from hypothesis import strategies as st

from pellucid.inside.trace import Trace, trace
from pellucid.model.config import (
    Bidirectional,
    Causal,
    Config,
    Gelu,
    GeluTanh,
    Init,
    LayerNorm,
    Learned,
    MaskedLanguage,
    Parallel,
    PostNorm,
    PreNorm,
    Relu,
    RMSNorm,
    Sinusoidal,
    SwiGLU,
    Unembed,
    Window,
)  # fmt: skip
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
def configs(draw, forms: str = "all") -> Config:
    """Any config; with `forms` "causal" one whose text can be continued, "decoder" one that needs ids alone, too."""
    groups = draw(st.sampled_from([1, 2, 3]))
    heads = groups * draw(st.sampled_from([1, 2]))
    d_head = draw(st.sampled_from([4, 8, 12]))
    rotary = st.builds(
        Rotary, st.sampled_from([100.0, 10000.0]), st.sampled_from([0.5, 1.0]), st.sampled_from(SCALINGS)
    )
    layout = st.sampled_from(["interleaved", "halves", "timescales"])
    blocks = [PreNorm(), PostNorm(), PostNorm(True), Parallel(1), Parallel(2)]
    activation = draw(st.sampled_from([Gelu(), GeluTanh(), Relu(), SwiGLU()]))
    config = Config(
        vocab_size=VOCAB,
        context_length=CONTEXT,
        n_layers=draw(st.integers(1, 3)),
        d_model=draw(st.sampled_from([12, 24])),
        n_heads=heads,
        n_kv_heads=groups,
        d_head=d_head,
        d_ff=draw(st.sampled_from([8, 20])),
        positions=draw(st.one_of(st.just(Learned()), st.builds(Sinusoidal, layout), rotary)),
        norm=draw(st.sampled_from([LayerNorm(), LayerNorm(1e-3, bias=False), RMSNorm()])),
        activation=activation,
        block=draw(st.sampled_from(blocks)),
        masks=draw(masks),
        qkv_bias=draw(st.booleans()),
        out_bias=draw(st.booleans()),
        ffn_bias=draw(st.booleans()),
        tied=draw(st.booleans()),
        attention_scales=draw(st.sampled_from([(), (0.3,)])),
        embedding_scale=draw(st.sampled_from([1.0, 2.5])),
        logit_scale=draw(st.sampled_from([1.0, 0.5])),
        n_token_types=draw(st.sampled_from([0, 2])),
        embedding_norm=draw(st.booleans()),
        head=Unembed() if isinstance(activation, SwiGLU) else draw(heads_on_top),
        init=Init(0.4),
    )
    if forms == "decoder":
        return replace(config, n_token_types=0)
    if isinstance(config.block, Parallel) or not draw(st.booleans()):
        return replace(config, masks=(Bidirectional(),)) if forms == "all" and draw(st.booleans()) else config
    return with_encoder(config, draw(st.integers(1, 2)), draw(st.booleans()))


masks = st.sampled_from([(Causal(),), (Window(3),), (Causal(), Window(2)), (Window(40), Causal())])
heads_on_top = st.sampled_from([Unembed(), Unembed(bias=True), MaskedLanguage()])


def with_encoder(config: Config, layers: int = 2, shared: bool = True) -> Config:
    """The encoder-decoder whose decoder is this config; an encoder that shares nothing is wider and has other words."""
    encoder = replace(
        config, n_layers=layers, masks=(Bidirectional(),), head=None, tied=True, n_token_types=0, attention_scales=()
    )
    if not shared:
        encoder = replace(encoder, d_model=2 * config.d_model, vocab_size=VOCAB - 3)
    return replace(config, encoder=encoder, shared_embedding=shared, n_token_types=0)


def arguments(config: Config, rows: int = 2, columns: int = 5) -> dict[str, torch.Tensor]:
    """What a pass of this config needs beside the ids."""
    if config.encoder is not None:
        return {"source": random_ids(rows, columns, seed=7) % config.encoder.vocab_size}
    return {"types": random_ids(rows, columns, seed=8) % 2} if config.n_token_types else {}


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


def traced(model: Transformer, ids: torch.Tensor, mask: torch.Tensor | None = None, tokenizer=None) -> Trace:
    """A trace with whatever else the model needs; an encoder's text is padded as `mask` says."""
    extra = arguments(model.config, *ids.shape)
    if model.encoder is None:
        return trace(model, ids, mask, tokenizer, types=extra.get("types"))
    return trace(model, ids, mask, tokenizer, source=trace(model.encoder, extra["source"], mask, tokenizer))


def passed(model: Transformer, ids: torch.Tensor, mask: torch.Tensor | None = None, looks=None) -> torch.Tensor:
    """The logits of the same pass."""
    masks = {} if model.encoder is None else {"source_mask": mask}
    return model(ids, mask, looks, **arguments(model.config, *ids.shape), **masks)

"""Published shapes by name, for models that start from random weights.

What a paper leaves open is chosen here and said beside it. Counts are of all parameters, a tied matrix once.
"""

import difflib
from typing import Any

from ..model.config import (
    Bidirectional,
    Causal,
    Config,
    Dropout,
    FanIn,
    Gelu,
    LayerNorm,
    MaskedLanguage,
    Parallel,
    PostNorm,
    Relu,
    RMSNorm,
    Sinusoidal,
    SwiGLU,
    Window,
)
from ..model.rotary import Llama3, Rotary

_PLAIN = Rotary()
BAND = 256  # GPT-3's local layers: their width was never published, this is GPT-Neo's


def _gpt2(n_layers: int, d_model: int, n_heads: int) -> Config:
    rates = Dropout(embedding=0.1, attention=0.1, update=0.1)
    return Config(50257, 1024, n_layers, d_model, n_heads, dropout=rates)


def _gpt3(n_layers: int, d_model: int, n_heads: int) -> Config:
    return Config(50257, 2048, n_layers, d_model, n_heads, masks=(Causal(), Window(BAND)))


def _pythia(n_layers: int, d_model: int, n_heads: int, vocab_size: int = 50304) -> Config:
    return Config(
        vocab_size,
        2048,
        n_layers,
        d_model,
        n_heads,
        positions=Rotary(fraction=0.25),
        activation=Gelu(),
        block=Parallel(2),
        tied=False,
    )


def _llama(
    shape: tuple[int, int, int, int, int],
    context_length: int,
    vocab_size: int = 32000,
    rotary: Rotary = _PLAIN,
    eps: float = 1e-5,
    **others: Any,
) -> Config:
    """`shape` is layers, width, heads, key-value heads, feed-forward width; `others` further fields of the config."""
    n_layers, d_model, n_heads, n_kv_heads, d_ff = shape
    return Config(
        vocab_size,
        context_length,
        n_layers,
        d_model,
        n_heads,
        n_kv_heads,
        d_ff=d_ff,
        positions=rotary,
        norm=RMSNorm(eps),
        activation=SwiGLU(),
        qkv_bias=False,
        out_bias=False,
        ffn_bias=False,
        **{"tied": False, **others},
    )


def _palm(n_layers: int, d_model: int, n_heads: int) -> Config:
    """One key-value head of 256 features; the norm's epsilon is not published, 1e-6 is Flax's own."""
    return Config(
        256000,
        2048,
        n_layers,
        d_model,
        n_heads,
        1,
        256,
        positions=Rotary(),
        norm=LayerNorm(1e-6, bias=False),
        activation=SwiGLU(),
        block=Parallel(1),
        qkv_bias=False,
        out_bias=False,
        ffn_bias=False,
        logit_scale=d_model**-0.5,
        init=FanIn(),
    )


def _bert(vocab_size: int, n_layers: int, d_model: int, n_heads: int) -> Config:
    """With both heads of pre-training."""
    return Config(
        vocab_size,
        512,
        n_layers,
        d_model,
        n_heads,
        norm=LayerNorm(1e-12),
        activation=Gelu(),
        block=PostNorm(),
        masks=(Bidirectional(),),
        n_token_types=2,
        embedding_norm=True,
        head=MaskedLanguage(),
        pooler=True,
        next_sentence=True,
        dropout=Dropout(0.1, 0.1, 0.1),
    )


def _transformer(d_model: int, n_heads: int, rate: float) -> Config:
    """Six layers on each side, 37,000 tokens that both share; positions have no end, 1024 is what is asked for here.

    The paper says nothing of biases in attention, and its own code has none.
    """
    side = {
        "vocab_size": 37000,
        "context_length": 1024,
        "n_layers": 6,
        "d_model": d_model,
        "n_heads": n_heads,
        "positions": Sinusoidal("interleaved"),
        "activation": Relu(),
        "block": PostNorm(),
        "qkv_bias": False,
        "out_bias": False,
        "embedding_scale": d_model**0.5,
        "dropout": Dropout(embedding=rate, update=rate),
    }
    return Config(**side, encoder=Config(**side, masks=(Bidirectional(),), head=None))


_LLAMA_3, _LLAMA_32 = Rotary(5e5), Rotary(5e5, scaling=Llama3(32.0))
_LLAMA_33B = _llama((60, 6656, 52, 52, 17920), 2048, eps=1e-6)

PRESETS = {
    # Vaswani et al. 2017, table 3
    "transformer-base": _transformer(512, 8, 0.1),
    "transformer-big": _transformer(1024, 16, 0.3),
    # Devlin et al. 2019
    "bert-base-uncased": _bert(30522, 12, 768, 12),
    "bert-base-cased": _bert(28996, 12, 768, 12),
    "bert-large-uncased": _bert(30522, 24, 1024, 16),
    # Radford et al. 2019, table 2
    "gpt2": _gpt2(12, 768, 12),
    "gpt2-medium": _gpt2(24, 1024, 16),
    "gpt2-large": _gpt2(36, 1280, 20),
    "gpt2-xl": _gpt2(48, 1600, 25),
    # Brown et al. 2020, table 2.1, where 1.3B has 24 heads of 128 in a width of 2048 and 13B a width of 5140: misprints
    "gpt3-125m": _gpt3(12, 768, 12),
    "gpt3-350m": _gpt3(24, 1024, 16),
    "gpt3-760m": _gpt3(24, 1536, 16),
    "gpt3-1.3b": _gpt3(24, 2048, 16),
    "gpt3-2.7b": _gpt3(32, 2560, 32),
    "gpt3-6.7b": _gpt3(32, 4096, 32),
    "gpt3-13b": _gpt3(40, 5120, 40),
    "gpt3-175b": _gpt3(96, 12288, 96),
    # Chowdhery et al. 2022, table 1
    "palm-8b": _palm(32, 4096, 16),
    "palm-62b": _palm(64, 8192, 32),
    "palm-540b": _palm(118, 18432, 48),
    # Biderman et al. 2023; the vocabulary is padded to suit the machines of each size
    "pythia-14m": _pythia(6, 128, 4),
    "pythia-31m": _pythia(6, 256, 8),
    "pythia-70m": _pythia(6, 512, 8),
    "pythia-160m": _pythia(12, 768, 12),
    "pythia-410m": _pythia(24, 1024, 16),
    "pythia-1b": _pythia(16, 2048, 8),
    "pythia-1.4b": _pythia(24, 2048, 16),
    "pythia-2.8b": _pythia(32, 2560, 32),
    "pythia-6.9b": _pythia(32, 4096, 32, 50432),
    "pythia-12b": _pythia(36, 5120, 40, 50688),
    # Touvron et al. 2023, and the releases after it
    "llama-7b": _llama((32, 4096, 32, 32, 11008), 2048, eps=1e-6),
    "llama-13b": _llama((40, 5120, 40, 40, 13824), 2048, eps=1e-6),
    "llama-30b": _LLAMA_33B,
    "llama-33b": _LLAMA_33B,
    "llama-65b": _llama((80, 8192, 64, 64, 22016), 2048, eps=1e-6),
    "llama-2-7b": _llama((32, 4096, 32, 32, 11008), 4096),
    "llama-2-13b": _llama((40, 5120, 40, 40, 13824), 4096),
    "llama-2-70b": _llama((80, 8192, 64, 8, 28672), 4096),
    "llama-3-8b": _llama((32, 4096, 32, 8, 14336), 8192, 128256, _LLAMA_3),
    "llama-3-70b": _llama((80, 8192, 64, 8, 28672), 8192, 128256, _LLAMA_3),
    "llama-3.2-1b": _llama((16, 2048, 32, 8, 8192), 131072, 128256, _LLAMA_32, tied=True),
    "llama-3.2-3b": _llama((28, 3072, 24, 8, 8192), 131072, 128256, _LLAMA_32, tied=True),
    "tinyllama-1.1b": _llama((22, 2048, 32, 4, 5632), 2048),
    "smollm2-135m": _llama((30, 576, 9, 3, 1536), 8192, 49152, Rotary(1e5), tied=True),
    # Jiang et al. 2023, and the releases after it
    "mistral-7b-v0.1": _llama((32, 4096, 32, 8, 14336), 32768, masks=(Window(4096),)),
    "mistral-7b-v0.2": _llama((32, 4096, 32, 8, 14336), 32768, rotary=Rotary(1e6)),
    "mistral-7b-v0.3": _llama((32, 4096, 32, 8, 14336), 32768, 32768, Rotary(1e6)),
}


def preset(name: str) -> Config:
    """The config of a published shape. Raises ValueError with the nearest names for one that is not there."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, cutoff=0.5) or list(PRESETS)
        raise ValueError(f"no preset {name!r}; the nearest are {', '.join(near)}")
    return PRESETS[name]

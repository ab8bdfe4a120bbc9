"""A transformer whose inside is known: the two-layer induction circuit (Elhage et al. 2021), its weights a formula.

Nothing is trained. The stream has four spaces side by side, each holding one-hot vectors: the token, its position, the
token before it, and the token to copy. Texts begin with the token `START` and do not repeat it.

- Head `PREVIOUS` looks one position back: its query at position p is the key of position p - 1. It copies the token
  that stands there into the third space.
- Head `INDUCTION` looks for the place whose previous token is the current one, and copies the token that stands there
  into the fourth space, which the unembedding reads. It rests on `START` where there is no such place.

All other heads and the feed-forward layers have weights of zero. Every analysis is first tried on this model.
"""

from dataclasses import dataclass

import torch

from ..model.config import Config, PreNorm, RMSNorm
from ..model.transformer import Transformer
from .circuits import attention_of

PREVIOUS = (0, 1)  # layer, head
INDUCTION = (1, 0)
START = 0  # the token that begins a text
LOGIT = 20.0  # of the copied token; all others get 0
_SHARPNESS = 2000.0  # scores far enough apart for patterns of exactly 0 and 1, in fp32 too


@dataclass(frozen=True)
class Spaces:
    """Where the four spaces begin in the stream."""

    token: int
    position: int
    previous: int
    copied: int


def spaces(config: Config) -> Spaces:
    """The layout of the hand-built circuit's stream: V + T + V + V features."""
    V, T = config.vocab_size, config.context_length
    return Spaces(0, V, V + T, 2 * V + T)


def induction_circuit(vocab_size: int = 32, context_length: int = 64) -> Transformer:
    """The circuit, in fp32, ready to run; `.double()` it for exact work.

    Raises ValueError for a vocabulary or a context of fewer than two.
    """
    if min(vocab_size, context_length) < 2:
        raise ValueError(f"the circuit needs at least 2 tokens and 2 positions, got {vocab_size} and {context_length}")
    config = Config(
        vocab_size=vocab_size,
        context_length=context_length,
        n_layers=2,
        d_model=3 * vocab_size + context_length,
        n_heads=2,
        d_head=max(context_length, vocab_size + 1),
        d_ff=1,
        norm=RMSNorm(),
        block=PreNorm(),
        qkv_bias=False,
        out_bias=False,
        ffn_bias=False,
        tied=False,
        attention_scales=(1.0,),
    )
    with torch.random.fork_rng(devices=[]):  # a new model draws its start values; nobody else's numbers should move
        transformer = Transformer(config).eval().requires_grad_(False)
    for name, weight in transformer.named_parameters():
        # With this gain a normed stream has length 1: each of its n ones becomes 1/sqrt(n).
        weight.fill_(config.d_model**-0.5 if "norm" in name else 0.0)
    _embeddings(transformer)
    _previous_token_head(transformer)
    _induction_head(transformer)
    return transformer


def _embeddings(transformer: Transformer) -> None:
    config, at = transformer.config, spaces(transformer.config)
    tokens, positions = torch.arange(config.vocab_size), torch.arange(config.context_length)
    named = dict(transformer.named_parameters())
    named["embed.token.weight"][tokens, at.token + tokens] = 1.0
    named["embed.position.weight"][positions, at.position + positions] = 1.0
    named["unembed.weight"][tokens, at.copied + tokens] = 2.0 * LOGIT  # four ones in the final stream: each is 1/2


def _previous_token_head(transformer: Transformer) -> None:
    (layer, head), at = PREVIOUS, spaces(transformer.config)
    attention = attention_of(transformer, layer)
    positions = torch.arange(transformer.config.context_length)
    words = torch.arange(START + 1, transformer.config.vocab_size)
    attention.W_Q[head][at.position + positions[1:], positions[:-1]] = _SHARPNESS
    attention.W_K[head][at.position + positions, positions] = 1.0
    attention.W_V[head][at.token + words, words] = 1.0
    attention.W_O[head][words, at.previous + words] = 2**0.5  # two ones in the stream it reads


def _induction_head(transformer: Transformer) -> None:
    (layer, head), at = INDUCTION, spaces(transformer.config)
    attention = attention_of(transformer, layer)
    tokens = torch.arange(transformer.config.vocab_size)
    words, rest = tokens[START + 1 :], transformer.config.vocab_size
    attention.W_Q[head][at.token + tokens, tokens] = _SHARPNESS
    attention.W_K[head][at.previous + words, words] = 1.0
    attention.W_Q[head][at.token + tokens, rest] = _SHARPNESS / 2  # every query would rest, half as much as it matches
    attention.W_K[head][at.token + START, rest] = 1.0
    attention.W_V[head][at.token + words, words] = 1.0
    attention.W_O[head][words, at.copied + words] = 3**0.5  # three ones in the stream it reads

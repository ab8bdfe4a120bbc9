"""Logits to tokens, and tokens to text: prefill, decode, an iterator of tokens."""

from .decode import Decoding, Step, Token, Watch
from .embed import embed
from .fill import Filling, fill
from .generate import Generation, Piece, generate, stream
from .sampling import Sampling
from .stop import StopMatcher

__all__ = [
    "Decoding", "Filling", "Generation", "Piece", "Sampling", "Step", "StopMatcher", "Token", "Watch", "embed", "fill",
    "generate", "stream",
]  # fmt: skip

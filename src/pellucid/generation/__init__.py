"""Logits to tokens, and tokens to text: prefill, decode, an iterator of tokens."""

from .decode import Decoding, Step, Token, Watch
from .generate import Generation, Piece, generate, stream
from .sampling import Sampling
from .stop import StopMatcher

__all__ = ["Decoding", "Generation", "Piece", "Sampling", "Step", "StopMatcher", "Token", "Watch", "generate", "stream"]

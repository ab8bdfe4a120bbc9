"""Logits to tokens, and tokens to text: prefill, decode, an iterator of tokens."""

from .beam import Beams
from .decode import Decoding, Step, Token, Watch
from .embed import embed
from .fill import Filling, fill
from .generate import Generation, Piece, generate, stream
from .sampling import Sampling
from .search import Found, search
from .stop import StopMatcher

__all__ = [
    "Beams", "Decoding", "Filling", "Found", "Generation", "Piece", "Sampling", "Step", "StopMatcher", "Token", "Watch",
    "embed", "fill", "generate", "search", "stream",
]  # fmt: skip

"""Text to ids and back, and conversations to text."""

from .decoder import Decoder
from .errors import TextError
from .template import ChatTemplate
from .tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Decoder", "TextError", "Tokenizer"]

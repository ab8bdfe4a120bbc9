"""The front door: `Model`, what `load` returns, and the verbs, each of which is one line into its room."""

from .loading import load
from .model import Model

__all__ = ["Model", "load"]

"""The front door: `Model`, what `load` returns, and the verbs, each of which is one line into its room."""

from .model import Model, load

__all__ = ["Model", "load"]

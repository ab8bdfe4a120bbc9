"""The command line: one file per command, each imported only when it is called."""

from .main import main

__all__ = ["main"]

"""Pellucid: one readable transformer, and everything inside it."""

__version__ = "0.1.0"

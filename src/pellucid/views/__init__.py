"""Arrays in, pictures out. Holds no mathematics of the model and imports no other room."""

from .strips import bar, strip
from .table import Table

__all__ = ["Table", "bar", "strip"]

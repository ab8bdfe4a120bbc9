"""Arrays in, pictures out. Holds no mathematics of the model and imports no other room."""

from .figures import bars, heat_map
from .strips import bar, strip
from .table import Table
from .view import View

__all__ = ["Table", "View", "bar", "bars", "heat_map", "strip"]

"""Draws docs/explain.svg, the README's picture, from what the command really prints.

python docs/picture.py
"""

import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

COMMAND = ("explain", "smollm2", "The capital of France is")
WIDTH = 80


def main() -> None:
    printed = subprocess.run([sys.executable, "-m", "pellucid", *COMMAND], capture_output=True, text=True, check=True)
    parts = printed.stdout.split("\n\n")
    console = Console(record=True, width=WIDTH, file=StringIO())
    console.print(Text(f'$ pellucid {COMMAND[0]} {COMMAND[1]} "{COMMAND[2]}"\n', style="bold"))
    shown = "\n\n".join((parts[0], parts[1], next(part for part in parts if ", by head" in part)))
    console.print(Text(shown.replace(" ", "\u00a0")))  # plain spaces at the start of a line would be lost
    svg = console.export_svg(title="Who wrote the answer")
    # A picture must not fetch anything: the reader's own monospace font does.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    (Path(__file__).parent / "explain.svg").write_text(svg)


if __name__ == "__main__":
    main()

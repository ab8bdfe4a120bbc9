"""The help of every command as one page: `python -m pellucid.cli.docs > docs/cli.md`."""

from typing import Any

from .app import COMMANDS, command, fetch

_HEAD = """# The command line

Made from the commands' own help by `python -m pellucid.cli.docs > docs/cli.md`; a test compares the two.
"""


def page() -> str:
    """The whole page, in Markdown."""
    parts = [_HEAD, _section("pellucid", command())]
    parts += [_section(f"pellucid {name}", fetch(name)) for name in COMMANDS]
    return "\n".join(parts)


def _section(name: str, of: Any) -> str:
    with of.make_context(name, [], resilient_parsing=True, terminal_width=80, max_content_width=80) as context:
        text = of.get_help(context)
    return f"## {name}\n\n```text\n{text.rstrip()}\n```\n"


if __name__ == "__main__":
    print(page(), end="")

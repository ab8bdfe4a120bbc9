"""README.md does what it says: its Python runs and prints what it shows, its commands are real."""

import doctest
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHELLS = ("bash", "sh", "shell", "console")


def blocks(markdown: str, *languages: str) -> list[str]:
    """The fenced blocks of these languages, in order."""
    fenced = re.findall(r"^```(\w+)[^\n]*\n(.*?)^```\s*$", markdown, flags=re.M | re.S)
    return [text for language, text in fenced if language in languages]


def run_python(markdown: str) -> list[str]:
    """Run the Python blocks in one namespace; what fails, or prints something else than is shown, comes back."""
    failures: list[str] = []
    namespace: dict[str, object] = {"__name__": "readme"}
    for number, text in enumerate(blocks(markdown, "python"), 1):
        if ">>>" not in text:
            exec(compile(text, f"README.md, Python block {number}", "exec"), namespace)
            continue
        test = doctest.DocTestParser().get_doctest(text, namespace, f"README.md, Python block {number}", None, 0)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        runner.run(test, out=failures.append, clear_globs=False)
        namespace = test.globs  # a DocTest runs in a copy
    return failures


def commands(markdown: str, program: str) -> list[list[str]]:
    """The lines of shell blocks that call a program, as words, with a prompt and comments taken off."""
    text = "".join(blocks(markdown, *SHELLS)).replace("\\\n", " ")
    lines = [shlex.split(line.removeprefix("$ "), comments=True) for line in text.splitlines()]
    return [words[1:] for words in lines if words[:1] == [program]]


def unknown_options(words: list[str], help_text: str) -> list[str]:
    """Options of a command line that the command's help does not list."""
    options = [word.partition("=")[0] for word in words if word.startswith("-")]
    return [option for option in options if not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", help_text)]


@pytest.mark.slow
def test_python_blocks_run_and_print_what_they_show():
    assert blocks(README, "python")
    assert run_python(README) == []


@pytest.mark.slow
def test_the_page_of_the_inside_runs_and_prints_what_it_shows():
    assert run_python((ROOT / "docs" / "inside.md").read_text(encoding="utf-8")) == []


def test_the_page_of_the_inside_names_every_file():
    page = (ROOT / "docs" / "inside.md").read_text(encoding="utf-8").partition("## Where things are")[2]
    patterns = re.findall(r"`([\w*]+\.py)`", page)
    files = [path.name for path in (ROOT / "src" / "pellucid" / "inside").glob("[a-z]*.py")]
    assert [name for name in files if not any(fnmatch(name, pattern) for pattern in patterns)] == []


@pytest.mark.slow
def test_commands_are_real():
    for words in commands(README, "pellucid"):
        names = [word for word in words[:1] if not word.startswith("-")]
        call = [sys.executable, "-m", "pellucid", *names, "--help"]
        wide = {"COLUMNS": "200", "NO_COLOR": "1", "PATH": ""}
        done = subprocess.run(call, capture_output=True, text=True, check=False, env=wide)
        assert done.returncode == 0, f"pellucid {shlex.join(words)}: {done.stderr}"
        assert unknown_options(words, done.stdout) == [], f"pellucid {shlex.join(words)}"


def test_make_targets_are_real():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, flags=re.M))
    assert "demo" in targets
    named = {word for words in commands(README, "make") for word in words if "=" not in word}
    assert named <= targets


# --- The reading itself, on examples that are wrong ---


@pytest.mark.parametrize(
    ("shown", "fails"),
    [("3", False), ("4", True), ("Traceback (most recent call last):\nValueError: no", True)],
)
def test_a_wrong_result_is_found(shown, fails):
    markdown = f"```python\nx = 1\n```\n\nText.\n\n```python\n>>> y = x + 1\n>>> x + y\n{shown}\n```\n"
    assert bool(run_python(markdown)) == fails


def test_later_blocks_see_names_of_shown_ones():
    assert run_python("```python\n>>> x = 1\n```\n```python\n>>> x\n1\n```\n```python\nx += 1\n```\n") == []
    with pytest.raises(NameError):
        run_python("```python\nmissing\n```\n")


def test_commands_are_found_in_shell_blocks_alone():
    markdown = (
        "pellucid not\n```console\n$ pellucid run smollm2 'a b' \\\n    --top-k 4  # why\nParis\n```\n"
        "```bash\npellucid sites\n```\n"
    )
    assert commands(markdown, "pellucid") == [["run", "smollm2", "a b", "--top-k", "4"], ["sites"]]
    assert blocks(markdown, "bash") == ["pellucid sites\n"]


def test_an_option_that_help_does_not_list_is_found():
    help_text = "--temperature  FLOAT\n--top-k  INTEGER\n"
    assert unknown_options(["run", "--top-k", "4", "--temperature=0"], help_text) == []
    assert unknown_options(["run", "--top", "4"], help_text) == ["--top"]

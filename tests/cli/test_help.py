import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pellucid.cli.app import COMMANDS, command, fetch
from pellucid.cli.docs import page

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"

OPTIONS = {
    "run": "--temperature --top-k --top-p --min-p --max-new-tokens --seed --stop --json",
    "chat": "--system --temperature --top-k --top-p --min-p --max-new-tokens --seed --stop --json",
    "fill": "--top --json",
    "trace": "--layers --sites --position --source --values --json",
    "explain": "--token --minus --position --source --top --entries --by --check --json",
    "heads": "--layers --strongest --sequences --seed --json",
    "patch": "--token --minus --sites --each --noising --position --source --top --json",
    "neurons": "--token --corpus --folder --k --json",
    "edit": "--edits --zero --head --neuron --position --prompt --save --top --max-new-tokens --json",
    "params": "--json",
    "sites": "--length --layers --json",
    "explore": "--port --host --no-browser --json",
    "lesson": "--text --numbers --save --json",
    "convert": "--layout --type --replace --json",
    "tokenize": "--tokenizer --vocab-size --control --field --suffix --dataset --split --jobs --json",
    "train": "--set --watch --resume --json",
    "eval": "--length --stride --json",
}


def test_the_documentation_is_the_commands_own_help():
    assert DOCS.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_lists_every_option(call, name):
    code, out, err = call(name, "--help")
    assert (code, err) == (0, "")
    assert [option for option in OPTIONS[name].split() if f"\n  {option}" not in out] == []
    assert len(out.split("\n  --")) == len(OPTIONS[name].split()) + 2  # and --help


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(name):
    function = getattr(import_module(f"pellucid.cli.{name}"), name)
    assert (inspect.getdoc(function) or "").partition("\n")[0] == COMMANDS[name]


def test_help_fits_80_columns_and_has_no_colours():
    assert [line for line in page().splitlines() if len(line) > 80 and not line.startswith("Made from")] == []
    assert "\x1b" not in page()


def test_no_arguments_show_the_help(call):
    assert call() == call("--help")
    assert call("--help")[1].startswith("Usage: pellucid")


def test_version(call):
    import pellucid

    assert call("--version") == (0, f"pellucid {pellucid.__version__}\n", "")


def test_help_imports_no_command_and_nothing_heavy():
    check = (
        "import sys; from pellucid.cli.main import run; assert run(['--help']) == 0\n"
        "heavy = {'torch', 'numpy', 'rich', 'tokenizers', 'jinja2'} & set(sys.modules)\n"
        f"files = {{f'pellucid.cli.{{name}}' for name in {list(COMMANDS)}}} & set(sys.modules)\n"
        "assert not heavy | files, heavy | files"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_commands_help_imports_nothing_heavy():
    check = (
        "import sys; from pellucid.cli.main import run\n"
        f"for name in {list(COMMANDS)}: assert run([name, '--help']) == 0\n"
        "assert not {'torch', 'numpy', 'rich', 'tokenizers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_typer_itself_can_run_the_commands():
    import typer

    app = typer.Typer()
    app.command("params")(import_module("pellucid.cli.params").params)
    done = CliRunner().invoke(app, ["gpt2"])
    assert done.exit_code == 0
    assert "124,439,808" in done.output


def test_commands_are_fetched_by_name():
    assert sorted(command().commands) == sorted(COMMANDS)
    assert [fetch(name).name for name in COMMANDS] == list(COMMANDS)

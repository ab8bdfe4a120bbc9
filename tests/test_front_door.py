"""The names of `import pellucid`, and that asking for nothing costs nothing."""

import ast
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import pellucid

ROOT = Path(__file__).parents[1]
HELP = "import sys, runpy; sys.argv = ['pellucid', '--help']; runpy.run_module('pellucid', run_name='__main__')"


def imports_torch(program: str) -> bool:
    """Whether a program, run to its end, has imported torch. It is asked at exit: the command line exits by itself."""
    ask = "import atexit, os, sys; atexit.register(lambda: 'torch' in sys.modules and os._exit(3)); "
    done = subprocess.run([sys.executable, "-c", ask + program], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 3), done.stderr
    return done.returncode == 3


@pytest.mark.parametrize("program", ["import pellucid", HELP], ids=["import", "help"])
def test_torch_is_not_imported(program):
    assert not imports_torch(program)


def test_the_question_about_torch_can_be_answered_with_yes():
    assert imports_torch("import torch")


@pytest.mark.parametrize("name", pellucid.__all__)
def test_every_name_is_there(name):
    value = getattr(pellucid, name)
    assert value is getattr(pellucid, name)
    own = pellucid._HOMES.get(name, "").partition(":")[2]
    assert name.startswith("__") or value.__name__ == (own or name)


def test_dir_lists_the_names_and_no_helpers():
    assert dir(pellucid) == sorted(pellucid.__all__)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("laod", "Did you mean 'load'?"), ("Modell", "Did you mean 'Model'?"), ("zzz", "It has Attribution, ")],
)
def test_an_unknown_name_is_answered_with_the_nearest(name, hint):
    with pytest.raises(AttributeError, match=re.escape(hint)):
        getattr(pellucid, name)


def test_type_checkers_see_the_names_that_are_loaded():
    tree = ast.parse((ROOT / "src" / "pellucid" / "__init__.py").read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    names = [(alias, f".{node.module}") for node in imports for alias in node.names]
    seen = {alias.asname or alias.name: f"{home}:{alias.name}" if alias.asname else home for alias, home in names}
    assert seen == pellucid._HOMES
    assert {*seen, "__version__"} == set(pellucid.__all__)


def test_one_version_everywhere():
    assert version("pellucid") == pellucid.__version__
    assert f"\nversion: {pellucid.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## [{pellucid.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

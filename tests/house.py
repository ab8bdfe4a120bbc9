"""The house rules as functions over source text: each returns what departs from its rule, one line a finding.

`test_rooms.py` holds the package to them, and tests each of them on a small bad example.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "pellucid"
ROOMS = {"model", "text", "views", "weights", "generation", "inside", "training", "lessons", "explorer", "cli"}
EVERYTHING = ROOMS | {"front", "__init__"}

# Who may import whom. A room is a folder, or a file that stands beside the folders.
MAY_IMPORT = {
    "model": set(),
    "text": set(),
    "views": set(),
    "weights": {"model"},
    "generation": {"text", "model"},
    "inside": {"text", "model", "views"},
    "training": {"weights", "text", "generation", "model"},
    "front": {"weights", "text", "generation", "inside", "training", "views", "model"},
    "lessons": {"training", "generation", "inside", "views", "text", "model"},
    "explorer": EVERYTHING - {"explorer", "training", "cli"},
    "cli": EVERYTHING,
    "__main__": EVERYTHING,
    "__init__": EVERYTHING,
}
MODEL_LIBRARIES = sys.stdlib_module_names | {"torch", "jaxtyping"}
COMPUTED = "?"  # an import by a name that is worked out while running
MAY_COMPUTE = {"__init__", "cli"}

MOST_LINES, MOST_FUNCTION_LINES, MOST_PARAMETERS = 300, 40, 6

# What may be called at import beside classes: it makes constants out of constants.
CONSTANT_CALLS = {
    *("tuple", "list", "dict", "set", "frozenset", "range", "len", "zip", "enumerate", "sorted", "field", "namedtuple"),
    *("chr", "ord", "bytes", "int", "float", "math.sqrt", "math.log", "re.compile", "regex.compile", "np.array"),
}
CONSTANT_METHODS = {"split", "encode", "items", "keys", "values"}


@dataclass(frozen=True)
class Module:
    """One file of the package: its dotted name and its source."""

    name: str
    source: str
    is_package: bool = False

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @property
    def room(self) -> str:
        return room_of(self.name)


def room_of(name: str) -> str:
    """The room of a dotted name: "model" for pellucid.model.config, "__init__" for pellucid itself."""
    return [*name.split("."), "__init__"][1]


def modules_in(root: Path) -> dict[str, Module]:
    """Every file of the package that stands in this folder, by dotted name."""
    modules = {}
    for path in sorted(root.rglob("*.py")):
        parts = [PACKAGE, *path.relative_to(root).with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules[name] = Module(name, path.read_text(encoding="utf-8"), is_package)
    return modules


# --- Who imports whom ---


def imports(module: Module, known: Mapping[str, Module], nodes: Iterable[ast.AST] | None = None) -> set[str]:
    """Dotted names of the modules that a module imports, anywhere in it: in functions and type-checking blocks too."""
    found: set[str] = set()
    for node in ast.walk(module.tree) if nodes is None else nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            stem = absolute(module, "." * node.level + (node.module or ""))
            inner = {alias.name: f"{stem}.{alias.name}" for alias in node.names}
            found |= {inner[name] if inner[name] in known else stem for name in inner}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            name = node.args[0] if node.args else None
            literal = isinstance(name, ast.Constant) and isinstance(name.value, str)
            found.add(absolute(module, name.value) if literal else COMPUTED)
    return found


def absolute(module: Module, name: str) -> str:
    """A module's name as one module writes it ("..model"), in full."""
    stem = name.lstrip(".")
    level = len(name) - len(stem)
    if level == 0:
        return name
    package = module.name.split(".")
    package = package[: len(package) - level + module.is_package]
    return ".".join([*package, stem] if stem else package)


def doors(modules: Mapping[str, Module]) -> list[str]:
    """Imports that the table does not have."""
    found = []
    for module in modules.values():
        names = imports(module, modules)
        rooms = {room_of(name) for name in names if name.split(".")[0] == PACKAGE}
        unlawful = rooms - MAY_IMPORT.get(module.room, set()) - {module.room}
        if module.room not in MAY_IMPORT:
            unlawful = {f"from outside the table: there is no room {module.room!r}"}
        if COMPUTED in names and module.room not in MAY_COMPUTE:
            unlawful.add("by a name worked out while running")
        if module.room == "model":
            unlawful |= {name.split(".")[0] for name in names} - MODEL_LIBRARIES - {PACKAGE, COMPUTED}
        found += [f"{module.name} imports {what}" for what in sorted(unlawful)]
    return found


def rings(modules: Mapping[str, Module]) -> list[str]:
    """Modules that import one another, directly or through others."""
    edges = {name: imports(module, modules) & set(modules) - {name} for name, module in modules.items()}
    found: list[str] = []
    done: set[str] = set()

    def follow(trail: list[str]) -> None:
        for other in sorted(edges[trail[-1]]):
            if other in trail:
                found.append(" -> ".join([*trail[trail.index(other) :], other]))
            elif other not in done:
                follow([*trail, other])
        done.add(trail[-1])

    for name in edges:
        if name not in done:
            follow([name])
    return found


# --- What runs at import ---


def at_import(module: Module) -> list[str]:
    """Statements that do work when the module is imported, and, for the front door, its imports of libraries."""
    found = []
    builders = builders_in(module)
    for statement in top_level(module.tree.body):
        if not is_quiet(statement, builders):
            found.append(f"{module.name}:{statement.lineno}: works at import: {ast.unparse(statement)[:60]}")
    if module.room == "__init__":
        names = imports(module, {}, top_level(module.tree.body))
        heavy = {name for name in names if name.split(".")[0] not in sys.stdlib_module_names}
        found += [f"{module.name}: imports {name} before it is asked for" for name in sorted(heavy)]
    return found


def top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run at import, those of classes included."""
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from top_level(statement.body)
        elif isinstance(statement, ast.If) and ast.unparse(statement.test) in ("TYPE_CHECKING", "not TYPE_CHECKING"):
            runs_in_body = isinstance(statement.test, ast.UnaryOp)
            yield from top_level(statement.body if runs_in_body else statement.orelse)
        elif not (isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'"):
            yield statement


def is_quiet(statement: ast.stmt, builders: set[str]) -> bool:
    if isinstance(statement, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.Pass):
        return True
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        return all(makes_constant(name) or name in builders for name in calls_in(statement))
    return False


def builders_in(module: Module) -> set[str]:
    """A module's own functions that only make constants, and so may be called to make its constants."""
    functions = [node for node in module.tree.body if isinstance(node, ast.FunctionDef)]
    return {function.name for function in functions if all(map(makes_constant, calls_in(function)))}


def makes_constant(name: str) -> bool:
    """Whether a call only makes a value out of its arguments: a record (by its class's name), a container, a table."""
    last = name.rpartition(".")[2]
    return last[:1].isupper() or name in CONSTANT_CALLS or last in CONSTANT_METHODS


def calls_in(node: ast.AST) -> list[str]:
    return [ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)]


# --- Sizes ---


def sizes(module: Module) -> list[str]:
    """Files, functions and parameter lists that are too long."""
    found = []
    lines = module.source.count("\n")
    if lines > MOST_LINES:
        found.append(f"{module.name}: {lines} lines, at most {MOST_LINES}")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            where = f"{module.name}:{node.lineno}: {node.name}"
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MOST_FUNCTION_LINES:
                found.append(f"{where} has {lines} lines, at most {MOST_FUNCTION_LINES}")
            names = parameters(node.args)
            if len(names) > MOST_PARAMETERS and module.room != "cli":  # a command's parameters are its options
                found.append(f"{where} takes {len(names)} parameters, at most {MOST_PARAMETERS}")
    return found


def parameters(arguments: ast.arguments) -> list[str]:
    """The names of a function's parameters, `*args` and `**kwargs` among them, without self and cls."""
    stars = [arg for arg in (arguments.vararg, arguments.kwarg) if arg is not None]
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *stars]
    return [arg.arg for arg in every if arg.arg not in ("self", "cls")]


def probes(module: Module) -> list[str]:
    """Places inside the model that ask an object what it is called or has, instead of knowing."""
    if module.room != "model":
        return []
    return [f"{module.name}: {name}(...)" for name in calls_in(module.tree) if name in ("hasattr", "getattr")]

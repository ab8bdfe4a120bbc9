"""Where chat templates run: Jinja's immutable sandbox, with a budget of steps and of characters.

A template is a stranger's program. The sandbox keeps it from Python's insides and from changing what it is given, the
budget lets it end.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from .errors import one_line

MOST_STEPS = 1_000_000  # turns of loops and calls of functions
MOST_CHARACTERS = 1 << 25  # of a template, of what it writes, and of a string it makes
BUDGET = "steps left"  # a name no template can write, since it has a blank


def compiled(source: str) -> Template:
    """A template's program. Raises whatever Jinja and Python raise for one that is none."""
    if len(source) > MOST_CHARACTERS:
        raise TemplateError(f"it has {len(source)} characters, at most {MOST_CHARACTERS} are read")
    sandbox = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols])
    sandbox.filters |= {"tojson": to_json, "counted": counted, "bounded": bounded}
    sandbox.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    tree = Counting().visit(sandbox.parse(source))
    return Template.from_code(sandbox, sandbox.compile(tree), sandbox.make_globals(None))


def written(template: Template, names: Mapping[str, object]) -> str:
    """What a template writes, given these names. Raises whatever goes wrong in it."""
    return "".join(limited(template.generate({**names, BUDGET: Budget(MOST_STEPS)})))


def described(error: Exception) -> str:
    """What went wrong, on one line; what the template says of itself needs no class name."""
    line = getattr(error, "lineno", None)
    where = "" if line is None else f" (line {line})"
    kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
    return f"{kind}{one_line(error)}{where}" if str(error) else f"{type(error).__name__}{where}"


class Budget:
    """How many more steps a template may take in one rendering."""

    def __init__(self, steps: int):
        self._left = steps

    def spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise SecurityError(f"it takes more than {MOST_STEPS} steps")


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with counted calls, and with operators that make no huge values."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call(self, context: Context, obj: Callable[..., object], /, *args: object, **kwargs: object) -> object:
        context.parent[BUDGET].spend()
        return bounded(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        if isinstance(left, int | float) and isinstance(right, int | float):
            if operator == "**" and (abs(left) > 1 << 32 or abs(right) > 64):
                raise SecurityError("it takes a power of numbers that are too large")
        elif operator == "*":
            length = max((len(side) for side in (left, right) if isinstance(side, str | list | tuple)), default=0)
            times = max((side for side in (left, right) if isinstance(side, int)), default=0)
            if length * times > MOST_CHARACTERS:
                raise SecurityError(f"it repeats {length} things {times} times")
        elif operator == "%" and re.search(r"\d{5}|\*", str(left)):
            raise SecurityError("it formats to a width that is too large")
        return bounded(super().call_binop(context, operator, left, right))


class Counting(NodeTransformer):
    """Puts what loops go over, and what `~` joins, through the filters that count."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "counted", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Filter(node, "bounded", [], [], None, None, lineno=node.lineno)


class GenerationBlock(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; the text is the same without it."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@pass_context
def counted(context: Context, items: Any) -> Iterator[object]:
    """What a loop goes over, each turn one step of the budget."""
    budget = context.parent[BUDGET]
    for item in items:
        budget.spend()
        yield item


def bounded(value: object) -> object:
    """The value itself, unless it is so long that making longer ones from it would take all memory."""
    if isinstance(value, str | list | tuple) and len(value) > MOST_CHARACTERS:
        raise SecurityError(f"it makes a value of more than {MOST_CHARACTERS} characters or items")
    return value


def limited(pieces: Iterable[str]) -> Iterator[str]:
    """What the template writes, piece by piece, up to the limit."""
    left = MOST_CHARACTERS
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise SecurityError(f"it writes more than {MOST_CHARACTERS} characters")
        yield piece


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as templates expect it: for a model to read, so that nothing is escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: object = "") -> NoReturn:
    raise TemplateError(str(message))


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)

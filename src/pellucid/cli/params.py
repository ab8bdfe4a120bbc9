"""`pellucid params`: where the parameters are."""

from typing import TYPE_CHECKING

from ..views import Table, bar
from .options import Json, ShapeName
from .shape import shape
from .talk import print_json

if TYPE_CHECKING:
    from ..model.budget import Budget

BAR = 16


def params(name: ShapeName, as_json: Json = False) -> None:
    """Count the parameters, line by line.

    Counted from the shape alone, a tied matrix once, and set beside the rule of thumb 12 d^2 L.
    """
    config = shape(name)
    from ..model.budget import budget

    count = budget(config)
    if as_json:
        parts = {"block": [vars(line) for line in count.block], "lines": [vars(line) for line in count.lines]}
        print_json({"name": name, **parts, "total": count.total, "rule": count.rule})
        return
    print(*tables(name, count), sep="\n\n")


def tables(name: str, count: "Budget") -> list[Table]:
    """One block, then the whole model; each column adds up to its last line."""
    columns = ("part", "formula", "parameters", "")
    each = sum(line.count for line in count.block)
    whole = count.total
    block = [(line.part, line.formula, line.count, bar(line.count, each, BAR, signed=False)) for line in count.block]
    lines = [(line.part, line.formula, line.count, bar(line.count, whole, BAR, signed=False)) for line in count.lines]
    rule = f"Rule of thumb 12 d^2 L: {count.rule:,}, which is {count.rule / whole:.0%} of the total."
    return [
        Table("one block", columns, (*block, ("= block", None, each, None))),
        Table(name, columns, (*lines, ("= total", None, whole, None)), rule),
    ]

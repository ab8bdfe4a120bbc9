"""The type checker that tests run under: whole numbers pass where floats are asked for, as in Python's own typing."""

from typing import Self

from beartype import BeartypeConf, FrozenDict, beartype

# The import hook hands over methods one by one, without the class that Self would mean.
typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True, hint_overrides=FrozenDict({Self: object})))

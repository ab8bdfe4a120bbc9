"""The type checker that tests run under: whole numbers pass where floats are asked for, as in Python's own typing."""

from beartype import BeartypeConf, beartype

typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))

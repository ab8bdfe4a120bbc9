"""The sites of a model as a table."""

from ..model.sites import sites
from ..model.transformer import Transformer
from ..views.table import Table


def site_table(transformer: Transformer, name: str, length: int = 1, batch: int = 1) -> Table:
    """Every value that can be read: name, the lessons' symbol, formula, shape and bytes for `length` tokens.

    Raises ValueError for a length or a batch below 1.
    """
    if length < 1 or batch < 1:
        raise ValueError(f"length and batch must be at least 1, got {length} and {batch}")
    config, size = transformer.config, transformer.W_U.element_size()
    rows = tuple(
        (
            site.name,
            site.symbol,
            site.formula,
            "x".join(map(str, site.shape(config, length, batch))),
            site.bytes(config, length, batch, size),
        )
        for site in sites(config)
    )
    return Table(f"sites of {name}", ("site", "symbol", "formula", "shape", "bytes"), rows)

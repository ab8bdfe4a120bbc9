"""`pellucid sites`: the names of every value."""

from typing import TYPE_CHECKING, Annotated

import typer

from ..views import Table
from .options import Json, Layers, ShapeName
from .shape import shape
from .talk import layers_of, print_json

if TYPE_CHECKING:
    from ..model.config import Config
    from ..model.sites import Site


def sites(
    name: ShapeName,
    length: Annotated[int, typer.Option("--length", metavar="T", min=1, help="The number of tokens.")] = 128,
    layers: Layers = "0",
    as_json: Json = False,
) -> None:
    """List every value that can be read.

    Each with its symbol, formula, shape and bytes in fp32 for one text of T tokens. Layers that are not shown in full
    have the same sites, and are summed up on one line. With --json every site is listed.
    """
    config = shape(name)
    from ..model.sites import sites

    found = sites(config)
    if as_json:
        records = [
            {
                "site": site.name,
                "symbol": site.symbol,
                "formula": site.formula,
                "axes": site.axes,
                "shape": site.shape(config, length),
                "bytes": site.bytes(config, length),
            }
            for site in found
        ]
        print_json({"name": name, "length": length, "sites": records})
        return
    print(table(name, config, found, length, layers_of(layers, config.n_layers)))


def table(name: str, config: "Config", found: "tuple[Site, ...]", length: int, full: list[int]) -> Table:
    """The sites of the layers in `full`; runs of other layers as one line each."""
    rows: list[tuple[object, ...]] = []
    folded: list[Site] = []
    for site in found:
        if site.layer is not None and site.layer not in full and not _is_last(site, config):
            folded.append(site)
            continue
        rows += _folded(folded, config, length)
        folded = []
        axes = " ".join(site.axes[1:])
        rows.append((site.name, site.symbol, _short(site), axes, unit(site.bytes(config, length))))
    total = sum(site.bytes(config, length) for site in found)
    rows.append(("= all", None, None, None, unit(total)))
    title = f"{len(found)} sites of {name} at {length} tokens"
    note = _axes(config, length)
    if config.encoder is not None:
        note += "\nNames in a formula are of the same side, encoder or decoder, as the site."
    return Table(title, ("site", "symbol", "formula", "shape", "bytes"), tuple(rows), note)


def _short(site: "Site") -> str:
    """The formula, in which names leave out the side that the site's own name says."""
    side = site.name.partition(".")[0]
    return site.formula.replace(f"{side}.", "") if side in ("encoder", "decoder") else site.formula


def _is_last(site: "Site", config: "Config") -> bool:
    """Whether it is the last stream, which follows all layers."""
    own = config.encoder if config.encoder is not None and site.name.startswith("encoder.") else config
    return site.layer == own.n_layers


def unit(size: int) -> str:
    """Bytes in the unit that keeps three or four digits."""
    if size < 1000:
        return f"{size} B".rjust(8)
    power = min(3, (len(str(size)) - 1) // 3)
    return f"{size / 1000**power:.1f} {' kMG'[power]}B".rjust(8)


def _folded(folded: "list[Site]", config: "Config", length: int) -> list[tuple[object, ...]]:
    if not folded:
        return []
    first, last = folded[0].layer, folded[-1].layer
    before = folded[0].name.partition(str(first))[0]
    name = f"{before}{first}-{last}.*" if first != last else f"{before}{first}.*"
    size = sum(site.bytes(config, length) for site in folded)
    return [(name, None, f"{len(folded)} sites, named alike", None, unit(size))]


def _axes(config: "Config", length: int) -> str:
    sizes = {
        "T and S positions": length,
        "H query heads": config.n_heads,
        "G key-value heads": config.n_kv_heads,
        "D width": config.d_model,
        "K head width": config.d_head,
        "F feed-forward width": config.d_ff,
        "V vocabulary": config.vocab_size,
    }
    return "Axes after the batch: " + ", ".join(f"{axis} {size:,}" for axis, size in sizes.items()) + "."

"""Reading a corpus: every row runs once, and each layer's neurons are looked at as they pass."""

import hashlib
import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from numbers import Integral

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..model.config import Dropout
from ..model.flow import Look
from ..model.place import Place
from ..model.transformer import Transformer
from ..text import Tokenizer
from .fingerprint import fingerprint
from .neuron_store import holds_scan
from .neurons import Neurons, Progress, Row, Scan
from .strongest import Strongest

EVERY = 64  # batches between two savings


@torch.no_grad()
def scan(
    transformer: Transformer,
    rows: Iterable[Row],
    settings: Scan | None = None,
    tokenizer: Tokenizer | None = None,
    folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Neurons:
    """Read every row of token ids once, and keep of each neuron what it is strongest on, its sum, how often it is on.

    With a `folder` the scan is kept there as it goes; called again with the same rows it goes on behind those that it
    has, to the same numbers. Raises ValueError for a folder whose scan is of other rows, weights or settings, for a row
    without tokens, and for values that are not finite.
    """
    if transformer.encoder is not None:
        raise ValueError("a decoder reads a second text with each row: scan the encoder by itself (model.encoder)")
    settings = settings or Scan()
    found, stream = _none(transformer, settings, tokenizer), iter(rows)
    if folder is not None and holds_scan(folder):
        found = _continued(Neurons.load(folder, tokenizer, str(transformer.W_U.device)), found, stream, folder)
    if progress is not None and found.tokens:
        progress(found.tokens)
    number = 0
    while not found.done:
        batch = [_ids(row, found.rows + at) for at, row in enumerate(islice(stream, settings.batch))]
        before, number = found.tokens, number + 1
        found = _read(transformer, batch, found) if batch else found
        found = replace(found, done=len(batch) < settings.batch)
        if folder is not None and (found.done or number % EVERY == 0):
            found.save(folder)
        if progress is not None:
            progress(found.tokens - before)
    if not found.tokens:
        raise ValueError(f"there is nothing to count: {found.rows} rows, skip={settings.skip}")
    return found


def model_print(transformer: Transformer) -> str:
    """A fingerprint of a model's shape and of a sample of its weights."""
    sample = fingerprint(transformer.parameters()).double().cpu().numpy().tobytes()
    return hashlib.sha256(repr(transformer.config).encode() + sample).hexdigest()


def _none(transformer: Transformer, settings: Scan, tokenizer: Tokenizer | None) -> Neurons:
    """A scan that has seen nothing."""
    config, weight = transformer.config, transformer.W_U
    like = torch.empty(0, dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device)
    told = 3 + settings.before + settings.after
    kept = [Strongest.none(config.n_layers, settings.k, config.d_ff, told, like) for _ in range(1 + settings.lowest)]
    sums = torch.zeros(config.n_layers, config.d_ff, dtype=torch.float64, device=weight.device)
    lowest = kept[1] if settings.lowest else None
    return Neurons(settings, kept[0], lowest, sums, sums.long(), model_print(transformer), tokenizer=tokenizer)


def _continued(kept: Neurons, new: Neurons, stream: Iterator[Row], folder: str | os.PathLike[str]) -> Neurons:
    """What a folder holds, the rows that it has seen taken off the stream."""
    if kept.settings != new.settings or kept.model != new.model:
        what = f"{kept.settings}" if kept.settings != new.settings else "other weights"
        raise ValueError(f"{os.fspath(folder)} holds a scan with {what}: choose another folder")
    digest, seen = "", 0
    for row in islice(stream, kept.rows):
        digest, seen = _digest(digest, _ids(row, seen)), seen + 1
    if seen < kept.rows or digest != kept.digest or (kept.done and next(stream, None) is not None):
        raise ValueError(f"{os.fspath(folder)} holds a scan of other rows ({kept.rows} of them): choose another folder")
    return kept


def _read(transformer: Transformer, batch: list[list[int]], found: Neurons) -> Neurons:
    """One batch of rows, padded on the right where their lengths differ."""
    ids, real = _padded(batch, transformer.W_U.device)
    place: list[Place] = []
    here = transformer.begin(ids, None if bool(real.all()) else real)
    place.append(here.place)
    counted = real & (here.place.positions >= found.settings.skip)
    seen = _told(ids.masked_fill(~real, -1), here.place, found)[counted]
    looks = {
        f"{transformer.prefix}{layer}.ffn.neurons": _taker(found, layer, counted, seen)
        for layer in range(transformer.config.n_layers)
    }
    here = replace(here, looks=looks, dropout=Dropout())
    transformer.run(transformer.embed(ids, here), here)
    digest = found.digest
    for row in batch:
        digest = _digest(digest, row)
    return replace(found, rows=found.rows + len(batch), tokens=found.tokens + int(counted.sum()), digest=digest)


def _taker(found: Neurons, layer: int, counted: Bool[Tensor, "B T"], seen: Int[Tensor, "N C"]) -> Look:
    """A look at one layer's neurons, which takes what is counted of them and changes nothing."""

    def take(value: Float[Tensor, "B T F"], _place: Place, _keys: Place | None) -> Tensor:
        values = value[counted].to(found.highest.values.dtype)
        if not len(values):
            return value
        total = values.sum(0, dtype=torch.float64)
        if not bool(total.isfinite().all()):
            raise ValueError(f"neurons of layer {layer} are not finite in the rows from {found.rows} on")
        found.sums[layer] += total
        found.active[layer] += (values > 0).sum(0)
        found.highest.take(layer, values, seen)
        if found.lowest is not None:
            found.lowest.take(layer, -values, seen)
        return value

    return take


def _told(ids: Int[Tensor, "B T"], place: Place, found: Neurons) -> Int[Tensor, "B T C"]:
    """Of every token its row, its position, and the ids around it, -1 where there are none."""
    settings = found.settings
    padded = F.pad(ids, (settings.before, settings.after), value=-1)
    around = padded.unfold(1, settings.before + 1 + settings.after, 1)
    rows = torch.arange(found.rows, found.rows + len(ids), device=ids.device)[:, None].expand_as(ids)
    return torch.cat((torch.stack((rows, place.positions.expand_as(ids)), -1), around), -1).int()


def _padded(batch: list[list[int]], device: torch.device) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    width = max(map(len, batch))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in batch], device=device)
    lengths = torch.tensor([len(row) for row in batch], device=device)
    return ids, torch.arange(width, device=device)[None] < lengths[:, None]


def _ids(row: Row, number: int) -> list[int]:
    if isinstance(row, str | bytes) or not all(isinstance(each, Integral) for each in row):
        raise ValueError(f"row {number} must hold token ids, got {row!r:.60}")
    ids = [int(each) for each in row]
    if not ids:
        raise ValueError(f"row {number} has no tokens: leave it out")
    return ids


def _digest(before: str, row: list[int]) -> str:
    return hashlib.sha256(before.encode() + array("q", row).tobytes()).hexdigest()

"""Where the columns of a batch stand. Positions come from the padding mask, never from the column's number."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from .config import Bidirectional, Causal, Mask, Window


@dataclass(frozen=True)
class Place:
    """Absolute positions of T columns, and which of them hold tokens.

    `positions` has one row for all sequences when nothing is padded. `real` is None when nothing is padded: the columns
    then hold the positions `end - T` to `end - 1` in every row, which the host knows without asking the device.
    `length` is the total length that length-dependent rotary frequencies are made for. `document` numbers the documents
    of rows that hold several, which see nothing of one another and each begin at position 0; `real` is then given.
    """

    positions: Int[Tensor, "b T"]
    real: Bool[Tensor, "B T"] | None
    end: int
    length: int
    document: Int[Tensor, "B T"] | None = None


def place_of(
    shape: tuple[int, int],
    mask: Tensor | None,
    device: torch.device,
    before: Place | None = None,
    length: int | None = None,
) -> Place:
    """The place of new columns of a [B, T] batch, following the columns of `before`.

    `mask` is B x T, 1 or True where a column holds a token and 0 or False where it is padding, on either side; a
    position is the number of tokens before it in its row. Numbers above 1 are further documents of a row, each of which
    stands together and is read as if it were alone.
    """
    if mask is not None and not (mask.is_floating_point() or mask.dtype == torch.bool) and int(mask.max()) > 1:
        return _of_documents(mask.to(device), shape, length)
    if mask is not None:
        mask = _checked(mask, shape)
    if mask is None and (before is None or before.real is None):
        start = before.end if before else 0
        end = start + shape[1]
        return Place(torch.arange(start, end, device=device)[None], None, end, max(length or 0, end))
    real = torch.ones(shape, dtype=torch.bool, device=device) if mask is None else mask.to(device)
    seen = _tokens_in(before, shape[0], device) if before else 0
    positions = (real.long().cumsum(1) - 1).clamp(min=0) + seen
    end = int(positions.max()) + 1
    return Place(positions, real, end, max(length or 0, end))


def join(before: Place | None, new: Place) -> Place:
    """The place of cached keys followed by new ones."""
    if before is None:
        return new
    if before.real is None and new.real is None:
        positions = torch.cat((before.positions, new.positions), dim=1)
        return Place(positions, None, new.end, new.length)
    rows = max(_rows(before), _rows(new))
    positions = torch.cat((before.positions.expand(rows, -1), new.positions.expand(rows, -1)), dim=1)
    real = torch.cat((_real(before, rows), _real(new, rows)), dim=1)
    return Place(positions, real, max(before.end, new.end), new.length)


def row_of(place: Place, row: int) -> Place:
    """The place of one row of a batch; a row without padding needs no mask any more."""
    rows = slice(None) if place.positions.shape[0] == 1 else slice(row, row + 1)
    positions = place.positions[rows]
    if place.document is not None:
        return pick(place, [row])
    if place.real is None or bool(place.real[row].all()):
        return Place(positions, None, int(positions[0, -1]) + 1, place.length)
    return Place(positions, place.real[row : row + 1], int(positions.max()) + 1, place.length)


def narrowed(place: Place, real: Tensor, rows: Sequence[int]) -> tuple[Place, int]:
    """The place of some of the rows without their common padding, and how many columns that was."""
    real = real[list(rows)]
    first = int(real.any(0).int().argmax())
    real, positions = real[:, first:], place.positions[list(rows), first:]
    end = int(torch.where(real, positions, -1).max()) + 1
    if bool(real.all()):
        return Place(positions[:1], None, end, place.length), first
    return Place(positions, real, end, place.length), first


def column(place: Place, index: int) -> Place:
    """The place of one column."""
    return columns(place, [index])


def columns(place: Place, indexes: Sequence[int]) -> Place:
    """The place of some of the columns, in this order."""
    return _columns(place, list(indexes))


def pick(place: Place, rows: Sequence[int]) -> Place:
    """The place of some of the rows, in this order."""
    if place.real is None:
        return place
    document = None if place.document is None else place.document[list(rows)]
    return replace(place, positions=place.positions[list(rows)], real=place.real[list(rows)], document=document)


def tail(place: Place, first: int) -> Place:
    """The place of the columns from `first` on."""
    return place if first == 0 else _columns(place, slice(first, None))


def first_seen(place: Place, new: Place, width: int) -> int:
    """The first column of `place` that a query of `new`, which follows it, sees through a window of `width`."""
    columns = place.positions.shape[1]
    if place.real is None and new.real is None:
        return max(0, columns - width + 1)
    rows = max(_rows(place), _rows(new))
    real = _real(place, rows)
    tokens = torch.where(real, place.positions, -1).amax(dim=1, keepdim=True) + 1
    seen = (real & (place.positions > tokens - width)).any(0)
    return int(seen.int().argmax()) if bool(seen.any()) else columns


def is_plain_causal(mask: Mask, queries: Place, keys: Place) -> bool:
    """Whether the mask is the square lower triangle: the same columns on both sides, none of them padding."""
    if queries is not keys or queries.real is not None:
        return False
    return isinstance(mask, Causal) or (isinstance(mask, Window) and queries.positions.shape[1] <= mask.width)


def sees_everything(mask: Mask, queries: Place, keys: Place) -> bool:
    """Whether no mask is needed: nothing is padded, and every key is in every query's sight."""
    if queries.real is not None or keys.real is not None:
        return False
    if isinstance(mask, Bidirectional):
        return True
    alone = queries.positions.shape[1] == 1 and keys.end <= queries.end
    return alone and (isinstance(mask, Causal) or queries.end - keys.end + keys.positions.shape[1] <= mask.width)


def visible(mask: Mask, queries: Place, keys: Place) -> Bool[Tensor, "b T S"]:
    """Which keys each query may attend to, from the two lists of positions alone; padding neither sees nor is seen, and
    one document nothing of another."""
    query, key = queries.positions[:, :, None], keys.positions[:, None, :]
    match mask:
        case Causal():
            allowed = key <= query
        case Window(width):
            allowed = (key <= query) & (key > query - width)
        case Bidirectional():
            allowed = torch.ones_like(key <= query)
    if keys.real is not None:
        allowed = allowed & keys.real[:, None, :]
    if queries.real is not None:
        allowed = allowed & queries.real[:, :, None]
    if queries.document is not None or keys.document is not None:
        allowed = allowed & (_document(queries)[:, :, None] == _document(keys)[:, None, :])
    return allowed


def _of_documents(numbers: Int[Tensor, "B T"], shape: tuple[int, int], length: int | None) -> Place:
    """The place of rows with several documents: 0 is padding, and columns of one number are one document."""
    numbers = numbers.long()
    _checked(numbers.clamp(max=1), shape)
    real, highest = numbers > 0, numbers.cummax(dim=1).values
    if bool((real & (numbers < highest)).any()):
        raise ValueError(
            "the padding mask must hold only 1 (a token) and 0 (padding), or number the documents of a row as they "
            "follow one another, as 1 1 2 2 2 0: their numbers rise"
        )
    starts = real & (numbers > torch.cat((torch.zeros_like(numbers[:, :1]), highest[:, :-1]), dim=1))
    last = real.long().cumsum(1) - 1  # as if the row were one document
    positions = (last - torch.where(starts, last, 0).cummax(dim=1).values).clamp(min=0)
    end = int(positions.max()) + 1
    return Place(positions, real, end, max(length or 0, end), numbers)


def _checked(mask: Tensor, shape: tuple[int, int]) -> Tensor | None:
    if tuple(mask.shape) != tuple(shape):
        raise ValueError(f"the padding mask must have the ids' shape {tuple(shape)}, got {tuple(mask.shape)}")
    flags = mask.bool()
    if not torch.equal(flags.to(mask.dtype), mask):
        raise ValueError(
            "the padding mask must hold only 1 (a token) and 0 (padding), or whole numbers that tell the documents of "
            "a row apart; scores are not added here"
        )
    tokens = flags.any(dim=1)
    if not tokens.all():
        raise ValueError(f"row {int((~tokens).nonzero()[0])} of the padding mask holds no token")
    return None if bool(flags.all()) else flags


def _tokens_in(place: Place, rows: int, device: torch.device) -> Int[Tensor, "B 1"]:
    """How many tokens each row already holds."""
    if place.real is None:
        return torch.full((rows, 1), place.end, device=device)
    return torch.where(place.real, place.positions, -1).amax(dim=1, keepdim=True) + 1


def _columns(place: Place, which: slice | list[int]) -> Place:
    real = None if place.real is None else place.real[:, which]
    document = None if place.document is None else place.document[:, which]
    return replace(place, positions=place.positions[:, which], real=real, document=document)


def _document(place: Place) -> Int[Tensor, "b T"]:
    """The document of each column; where there is one it is number 1."""
    return torch.ones_like(place.positions) if place.document is None else place.document


def _rows(place: Place) -> int:
    return place.positions.shape[0] if place.real is None else place.real.shape[0]


def _real(place: Place, rows: int) -> Bool[Tensor, "B T"]:
    if place.real is not None:
        return place.real
    return torch.ones((rows, place.positions.shape[1]), dtype=torch.bool, device=place.positions.device)

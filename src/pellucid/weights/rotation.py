"""Rows of queries and keys, from pairs of neighbours to the two halves that the model rotates.

Meta's files, and those made after them, turn features 2i and 2i + 1 of a head together; ours turn i and i + n/2, n
being the number of rotated features. Both are the same model with its rows in another order.
"""

from jaxtyping import Shaped
from torch import Tensor


def copy_half_split(
    room: Shaped[Tensor, "rows ..."], rows: Shaped[Tensor, "rows ..."], heads: int, rotated: int
) -> None:
    """Copy the rows of `heads` heads into `room`: of each head the even ones before the odd ones.

    Only the first `rotated` rows of a head change places. Nothing is allocated: both sides are views.
    """
    theirs, ours = rows.unflatten(0, (heads, -1)), room.unflatten(0, (heads, -1))
    ours[:, :rotated].unflatten(1, (2, -1)).copy_(theirs[:, :rotated].unflatten(1, (-1, 2)).transpose(1, 2))
    ours[:, rotated:].copy_(theirs[:, rotated:])


def interleaved(rows: Shaped[Tensor, "rows ..."], heads: int, rotated: int) -> Shaped[Tensor, "rows ..."]:
    """The inverse: a copy of the rows in which each head's rotated features stand as pairs of neighbours."""
    theirs = rows.clone()
    ours = rows.unflatten(0, (heads, -1))[:, :rotated]
    theirs.unflatten(0, (heads, -1))[:, :rotated].unflatten(1, (-1, 2)).copy_(
        ours.unflatten(1, (2, -1)).transpose(1, 2)
    )
    return theirs

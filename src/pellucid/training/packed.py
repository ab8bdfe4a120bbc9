"""Several documents in a row, so that nothing is padded but the ends of rows; they see nothing of one another."""

import numpy as np

from .batch import Batch
from .readers import InRounds, Rounds, Span, drawn, laid_out, pieces_of

OPEN = 32  # rows that are filled at a time


class Packed(InRounds):
    """Rows of at most `length` positions, each holding as many documents as fit; a longer document takes several rows.

    Which documents share a row is drawn once. The mask numbers them, so that each is read as if it were alone;
    attention then goes without the kernel for causal masks. Every round takes all rows once, in a new order.
    """

    def __init__(self, span: Span, length: int, rows: int, seed: int = 0):
        pieces = pieces_of(span, length)
        order = drawn(seed, len(pieces)).permutation(len(pieces))
        self.span, self.rows = span, _filled(pieces[order], length)
        # Equal lengths, so that rows are mixed freely.
        self.rounds = Rounds(np.zeros(len(self.rows)), rows, seed)

    def _batch(self, chosen: np.ndarray) -> Batch:
        return laid_out(self.span, [self.rows[i] for i in chosen])


def _filled(pieces: np.ndarray, length: int) -> list[np.ndarray]:
    """Pieces side by side in rows: each goes to the fullest of the open rows that has room for it."""
    closed: list[list[list[int]]] = []
    rows: list[tuple[int, list[list[int]]]] = []  # (room that is left, the pieces)
    for piece in pieces.tolist():
        fit = min((i for i, (room, _) in enumerate(rows) if room >= piece[1]), key=lambda i: rows[i][0], default=None)
        if fit is None:
            if len(rows) == OPEN:
                closed.append(rows.pop(min(range(OPEN), key=lambda i: rows[i][0]))[1])
            rows.append((length - piece[1], [piece]))
        else:
            room, held = rows[fit]
            rows[fit] = (room - piece[1], [*held, piece])
    return [np.asarray(held, dtype=np.int64) for held in closed + [held for _, held in rows]]

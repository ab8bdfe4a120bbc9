"""Which key each query should attend to: what the scores of heads are about.

Every target is a B x T x S table of booleans made from the ids and the positions, so that padding on either side and
texts of different lengths come out right. Keys that a layer's mask hides are left out when a score is taken.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from .trace import Trace


@dataclass(frozen=True, eq=False)
class Target:
    """The keys [B T S] that each query of a trace should attend to; a query without any is not counted.

    `reduce` "row_sum" averages a query's attention to all of its keys over the queries; "entry_mean" averages the
    single entries of the pattern.
    """

    name: str
    formula: str
    keys: Bool[Tensor, "B T S"]
    reduce: str = "row_sum"


def previous_token(trace: Trace) -> Target:
    """Mean over q >= 1 of A[q, q - 1] (Olsson et al. 2022)."""
    return replace(token_back(trace, 1), name="previous token")


def next_token(trace: Trace) -> Target:
    """Mean over q of A[q, q + 1]; of bidirectional models, in others no query sees its target."""
    return replace(token_back(trace, -1), name="next token")


def token_back(trace: Trace, offset: int) -> Target:
    """Mean of A[q, q - offset] over the queries that have such a key."""
    query, key = _positions(trace)
    return Target(f"token {offset} back", f"mean over q of A[q, q {-offset:+d}]", key == query - offset)


def first_token(trace: Trace) -> Target:
    """Mean over q >= 1 of A[q, 0], the attention sink (Xiao et al. 2023)."""
    query, key = _positions(trace)
    return Target("first token", "mean over q >= 1 of A[q, 0]", (key == 0) & (query >= 1))


def duplicate_token(trace: Trace) -> Target:
    """Mean over q with D(q) = {k < q: t_k = t_q} not empty of the sum of A[q, k] over D(q) (Wang et al. 2022)."""
    query, key = _positions(trace)
    same = trace.ids[:, :, None] == trace.ids[:, None, :]
    return Target("duplicate token", "mean over q of sum of A[q, k] over k < q with t_k = t_q", same & (key < query))


def induction(trace: Trace) -> Target:
    """Mean over q with I(q) = {1 <= k <= q: t_(k-1) = t_q} not empty of the sum of A[q, k] over I(q).

    The token after an earlier occurrence (Elhage et al. 2021). For s + s of N distinct tokens it is A[q, q - N + 1]
    over exactly N queries, N - 1 where nothing stands before them; the last token of the first copy may be followed
    by the second copy.
    """
    formula = "mean over q of sum of A[q, k] over 1 <= k <= q with t_(k-1) = t_q"
    return Target("induction", formula, _beside_earlier(trace, 1))


def prefix_matching(trace: Trace, offset: int = 1, reduce: str = "row_sum") -> Target:
    """Attention to the key `offset` after every earlier occurrence of the query's token (Olsson et al. 2022).

    +1, the token after it, is what the mechanism needs; -1 is what the paper's text says; 0 gives the duplicate-token
    score. `reduce` "row_sum" gives 1 to a head that attends to any of a query's keys, "entry_mean" only the share of
    them that it attends to.
    """
    if reduce not in ("row_sum", "entry_mean"):
        raise ValueError(f"reduce must be 'row_sum' or 'entry_mean', got {reduce!r}")
    how = "sum" if reduce == "row_sum" else "mean over entries"
    formula = f"{how} of A[q, j {offset:+d}] over j < q with t_j = t_q"
    return Target(f"prefix matching ({offset:+d})", formula, _beside_earlier(trace, offset), reduce)


def _positions(trace: Trace) -> tuple[Int[Tensor, "B T 1"], Int[Tensor, "B 1 S"]]:
    positions = trace.place.positions.expand(trace.ids.shape[0], -1)
    return positions[:, :, None], positions[:, None, :]


def _beside_earlier(trace: Trace, offset: int) -> Bool[Tensor, "B T S"]:
    """Keys that stand `offset` after an earlier occurrence of the query's token."""
    query, key = _positions(trace)
    occurrence = _ids_at(trace, -offset)
    return (occurrence[:, None, :] == trace.ids[:, :, None]) & (key - offset < query)


def _ids_at(trace: Trace, shift: int) -> Int[Tensor, "B T"]:
    """For each column the id that stands `shift` positions further in its row; -1 where the row has none."""
    ids, place = trace.ids, trace.place
    positions = place.positions.expand(ids.shape[0], -1)
    by_position = ids.new_full((ids.shape[0], place.end + 1), -1)
    slots = positions if place.real is None else torch.where(place.real, positions, place.end)
    by_position.scatter_(1, slots, ids)
    by_position[:, place.end] = -1  # where padding, and what lies outside, is sent
    wanted = positions + shift
    return by_position.gather(1, torch.where((wanted >= 0) & (wanted < place.end), wanted, place.end))

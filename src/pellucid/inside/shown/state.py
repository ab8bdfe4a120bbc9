"""One state of the stream at one token: what it would say, who wrote it, and the path on which it lies."""

from functools import partial
from typing import Any

import numpy as np
import torch

from ...views.packed import Packed
from ...views.packing import pack
from ..accounting import Spot
from ..asking import account, ask
from ..geometry import angles, step_lengths, trajectory
from ..ledger import Ledger, at_depth, logit_direction, state_ledger
from ..ledger import ledger as logit_ledger
from ..lens import lens as lens_table
from ..lens import top
from ..reading import state_sites
from ..run import Run

ALONG = ("top token", "itself", "nothing")


def cell(run: Run, state: int = -1, position: int = -1, k: int = 5, along: str = "top token") -> dict[str, Any]:
    """A state at a token: what the lens says there, and who wrote it, along what the top token's lens logit reads.

    "top" is the table of the k most probable tokens, None without a head. The ledger has the k largest entries and the
    rest; along "itself" it is of the state's own length, along "nothing" there is none, which is quicker. Where only a
    nearby question has an exact answer the ledger answers that, and "note" says why.
    """
    index = _index(run, state)
    if along not in ALONG:
        raise ValueError(f"along must be one of {', '.join(map(repr, ALONG))}, got {along!r}")
    has_head = run.transformer.unembed is not None
    table = ask(run, lambda point: top(at_depth(point, index), k), 0, position, ["final"]) if has_head else None
    found, note = None, ""
    if along != "nothing":
        token = None if table is None or along == "itself" else table.column("id")[0]
        found, note = account(run, partial(_accounted, index=index, token=token), 0, position, run.prints)
    if not has_head and along == "top token":
        note = "this model has no head that makes logits, so there is no lens: the entries add up to the state's length"
    column = run.column(0, position)
    now = run.states[index][0, column].double()
    return {
        "state": state_sites(run.transformer)[index],
        "index": index,
        "position": run.columns(0).index(column),
        "norm": float(now.norm()),
        "change": float((now - run.states[index - 1][0, column].double()).norm()) if index else None,
        "top": None if table is None else table.to_json(),
        "ledger": None if found is None else shortened(found, k),
        "note": note,
    }


def lens(run: Run, position: int = -1, token: int = -1) -> dict[str, Any]:
    """What each depth would say at a token, as a table; `token` is the id that is followed, -1 the model's own top."""
    followed = None if token == -1 else run.id_of(token)
    return ask(run, partial(lens_table, token=followed), 0, position, ["final"]).to_json()


def ledger(
    run: Run, token: int = -1, minus: int = -1, by: str = "sublayer", position: int = -1, k: int = 20
) -> dict[str, Any]:
    """Who wrote a logit after a token, or the difference of two: the k largest entries, the others, the remainder.

    `token` and `minus` are ids; -1 is the most probable token, and no second one. Where only a nearby question has an
    exact answer the ledger answers that, and "note" says why.
    """
    first = int(run.logits_at(0, [run.column(0, position)])[0].argmax()) if token == -1 else run.id_of(token)
    second = None if minus == -1 else run.id_of(minus)
    index = len(run.states) - 1
    question = partial(_accounted, index=index, token=first, minus=second, by=by)
    found, note = account(run, question, 0, position, run.prints)
    return {**shortened(found, k), "token": first, "minus": second, "note": note}


def path(run: Run, position: int = -1, first: int = 0, every: bool = False) -> Packed:
    """The path of a token through the states, in the plane in which its states differ most; or of every token.

    With `every` the plane is that of all tokens from `first` on, a first token that grows so large that nothing else is
    seen left out. Arrays `points`, states x tokens x 2, `lengths` of the steps, `angles` in degrees of each step from
    the one before; the meta has the states, the tokens' labels and positions, and the share of the variance that each
    axis explains.
    """
    at = run.columns(0).index(run.column(0, position))
    first, last = (first, len(run.columns(0)) - 1) if every else (at, at)
    found = trajectory(run, first=first, last=last)
    lengths = step_lengths(run, first=first, last=last).values
    turns = angles(run, first=first, last=last).values if len(run.states) > 2 else torch.zeros(0, last + 1 - first)
    meta = {
        "states": list(found.states),
        "positions": list(range(first, last + 1)),
        "tokens": list(found.tokens),
        "explained": found.explained.tolist(),
    }
    values = {"points": found.points, "lengths": lengths, "angles": turns}
    return Packed(meta, tuple(pack(name, np.asarray(value), "float32") for name, value in values.items()))


def shortened(found: Ledger, k: int) -> dict[str, Any]:
    """A ledger of its k largest entries, in their order of size, and all others as one."""
    table = found.top(k)
    rest = len(found.entries) - k
    return {
        "of": found.title,
        "by": found.by,
        "entries": [list(row) for row in table.rows[:k]],
        "others": {"count": rest, "amount": table.rows[-1][1]} if rest > 0 else None,
        "sum": found.total,
        "value": found.value,
        "remainder": found.remainder,
    }


def _accounted(
    spot: Spot, index: int, token: int | None, minus: int | None = None, by: str = "sublayer"
) -> tuple[Ledger, str]:
    """The ledger of what a lens logit reads of a state (of no token: of the state along itself), and what to know."""
    name = state_sites(spot.point.transformer)[index]
    if token is None:
        state = spot.point.state(index)[0, 0].double()
        length = state.norm().clamp(min=torch.finfo(torch.float64).tiny)
        return state_ledger(spot, index, state / length, by, f"length of {name} at {spot.label()}"), ""
    if spot.point.transformer.head is None:
        return logit_ledger(spot, token, minus, by, index), ""
    direction = logit_direction(spot, token, minus, index)
    label = spot.point.label
    said = label(token) + ("" if minus is None else f" minus that of {label(minus)}")
    note = (
        "a masked-language logit stands behind its head's activation, so it is no sum of writes: this is the state "
        "along what the logit reads of it, act(z)/z and the norms' scales frozen, without the constants of the head"
    )
    return state_ledger(spot, index, direction, by, f"what the logit of {said} reads of {name}"), note


def _index(run: Run, state: int) -> int:
    if not -len(run.states) <= state < len(run.states):
        raise ValueError(f"this run has the states 0..{len(run.states) - 1}, got state={state}")
    return state % len(run.states)

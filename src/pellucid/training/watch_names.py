"""What a run can watch, by name; what takes the measures is put together elsewhere."""

from difflib import get_close_matches

WATCHES = {
    "induction": "each head's induction score, and the loss on the second copy of random tokens",
    "previous": "each head's previous-token score",
    "gradients": "the gradient's length by depth",
    "updates": "the length of a step's update over that of the weights, by depth",
    "stream": "the stream's size by depth",
    "rank": "how many directions the stream spreads over, by depth",
    "weight-rank": "the same of each matrix",
}
LOSS = "loss"  # a measure of this name is in nats, and shown by itself
CHANCE = "chance"  # what the others are where there is nothing to find
# What the numbers of a watch are, as an axis says it.
QUANTITIES = {
    "induction": "induction score",
    "previous": "previous-token score",
    "gradients": "length of the gradient",
    "updates": "update / weights",
    "stream": "root mean square",
    "rank": "directions",
    "weight-rank": "directions",
}
WATCH_NAMES = "induction, previous, gradients, updates, stream, rank, weight-rank"


def watch_names(said: str) -> list[str]:
    """The names in "induction,gradients". Raises ValueError for one that there is not, with the nearest."""
    names = [name.strip() for name in said.split(",") if name.strip()]
    if said and not names:
        raise ValueError(f"no watch is named in {said!r}: there are {', '.join(WATCHES)}")
    for name in names:
        if name not in WATCHES:
            near = get_close_matches(name, WATCHES, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(WATCHES)}"
            raise ValueError(f"there is no watch {name!r}: {hint}")
    return list(dict.fromkeys(names))

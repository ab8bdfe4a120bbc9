"""Reading a state in another prompt, where the model itself says what is in it (Ghandeharioun et al. 2024)."""

from .edits import Edit, set_to
from .run import Run
from .trace import Trace


def carried(source: Run, site: str, position: int, target_site: str, target_position: int, row: int = 0) -> Edit:
    """The edit that sets a site of some run at one position to what `source` has at its own site and position.

    For `model.edited(...)`, to generate with it. The source's `position` counts its row's tokens, -1 being the last,
    and the target's is absolute. Raises SiteError for a site that is not there, ValueError for a position.
    """
    value = source.by_position(site, row)
    if not -len(value) <= position < len(value):
        raise ValueError(f"{site} has positions 0..{len(value) - 1}, got position={position}")
    return set_to(target_site, value[position], position=target_position)


def read_in(source: Run, site: str, position: int, target: Trace, target_site: str, target_position: int) -> Trace:
    """A prompt's trace with one of its states set to one of another run's; `.top()` says what comes next there.

    Both runs may be of one model or of two of the same width; the first row of each is meant, and positions count its
    tokens, -1 being the last. In a prompt such as "cat -> cat; 135 -> 135; x ->", with a state in the place of x, what
    comes next says what the state holds. Raises EditError for a value that does not fit the target's site.
    """
    there = int(target.place.positions[0, target.column(0, target_position)])
    return target.edit(carried(source, site, position, target_site, there))

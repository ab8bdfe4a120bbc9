"""The page and what it shows as one file: the answers that it asked for, found again by their addresses."""

from urllib.parse import parse_qsl, unquote

from ..inside.shown.resources import RESOURCES, Shown
from ..views.packed import Packed
from ..views.page import one_file
from ..views.table import plain
from .bodies import Saving
from .readings import READINGS, read_weights
from .refusals import RefusedError, as_json, over
from .resource_routes import parsed
from .state import State
from .traces import Kept
from .worker import Job


def saved(state: State, kept: Kept, body: Saving, job: Job) -> str:
    """One HTML file. What is no longer kept is left out of it; the file says so where it would be shown."""
    responses, size = {}, 0
    for path in dict.fromkeys(body.paths):
        job.check()
        try:
            shown = shown_at(state, path)
        except RefusedError as error:
            if error.status != 404:
                raise
            continue
        size += len(shown.to_bytes()) if isinstance(shown, Packed) else len(as_json(shown).body)
        if size > state.settings.saved:
            raise over("too_large", "bytes in one file", size, state.settings.saved)
        responses[path] = shown
    return one_file(body.state, responses, f"{kept.info['text'][:60]} - {kept.model}")


def shown_at(state: State, path: str) -> Shown:
    """What is found at an address that a page asked. Raises RefusedError."""
    where, _, query = path.partition("?")
    parts = [unquote(part) for part in where.split("/")]
    given = dict(parse_qsl(query, keep_blank_values=True))
    match parts:
        case ["traces", id]:
            return state.traces.get(id).info
        case ["traces", id, resource] if resource in RESOURCES:
            return _plain(RESOURCES[resource](state.traces.get(id).run, **parsed(resource, RESOURCES[resource], given)))
        case ["models", id, "card"] if (card := state.models.get(id).card) is not None:
            return card
        case ["models", id, reading] if reading in READINGS:
            held = state.models.get(id)
            return _plain(read_weights(held.model, reading, parsed(reading, READINGS[reading], given, 2)))
    raise RefusedError(404, "not_found", f"nothing is found at {path[:60]!r}")


def _plain(shown: Shown) -> Shown:
    return shown if isinstance(shown, Packed) else plain(shown)

"""Who wrote what a site reads: a query, a key, a value, a neuron before its activation, or a state of the stream.

Each is linear in one state of the stream once the scale of the norm that reads it is held: through that norm, a matrix
with its bias, and at a fixed position a rotation. So a direction of the site is one of the state, and the state is a
sum.
"""

from functools import partial

from ..model.attention import Attention, CrossAttention
from ..model.transformer import FeedForward, Step
from .accounting import ReadingNorm, Spot, account, alone, constant, final_norm
from .checking import Asked
from .errors import LedgerError
from .ledger import Ledger, checked_direction, closed, state_ledger
from .linear_readings import Given, Question, Reading, along_direction, of_attention, of_neurons
from .names import check_name
from .reading import state_sites
from .run import Run

_Part = Attention | FeedForward

_WRITTEN = "this is itself written to the stream: it is an entry of ledger(...), and by= splits it further"
_REFUSED = {
    "scores": "a score is a product of two sums: hold one side, wrote('{part}.query', head=, key=) for who wrote the "
    "query along that key, or wrote('{part}.key', head=, query=) the other way round",
    "pattern": "a softmax is no sum of writes; the nearest exact question is of the score: "
    "wrote('{part}.query', head=, key=)",
    "heads": "a head's output is itself a part of what is written; its split by position is ledger(..., by='head and "
    "source'), and what it reads is wrote('{part}.value', head=, along=)",
    "neurons": "an activation is no sum of writes; the nearest exact question is wrote('{part}.{before}', neuron=)",
    "scale": "a norm's scale is held, not summed; the nearest exact question is of the state that it reads",
    "writes": _WRITTEN,
    "update": _WRITTEN,
    "sum": "ask of the state that it becomes, along a direction: wrote('{l}.stream', along=)",
    "logits": "a logit's own ledger is ledger(token)",
    "": "nothing there is a linear reading of the stream; what is: a state, an input, a query, a key, a value, a gate, "
    "an up, final.normed",
}


def wrote(run: Run, question: Question, row: int, position: int) -> Ledger:
    """Who wrote what a site reads. Raises SiteError for a name that no site has, LedgerError for what is no sum."""
    site = check_name(question.site, run.names)
    if run.source is not None and site.startswith(run.source.transformer.prefix):
        return wrote(run.source, question, row, position)
    transformer, width = run.transformer, run.transformer.config.d_model
    for index, name in enumerate(state_sites(transformer)):
        if name == site:
            question.needs()
            spot = Spot.of(run, row, position)
            along = checked_direction(question.along, width, "stream")
            return state_ledger(spot, index, along, question.by, f"{site} at {spot.label()} along the direction")
    if site == f"{transformer.prefix}final.normed":
        return _of_the_end(Spot.of(run, row, position), question)
    for index, step in enumerate(transformer.steps):
        for part in step.parts:
            if site.startswith(f"{part.name}."):
                return _of_a_part(run, question, (row, position), (index, step, part))
    raise _refusal(site, None)


def _of_the_end(spot: Spot, question: Question) -> Ledger:
    """Who wrote the final stream as it is read, along a direction."""
    question.needs()
    norm = final_norm(spot.point)
    assert norm is not None, "a site of the model's own list"
    reading = along_direction(question, spot.point.transformer.config.d_model, spot)
    return _close(Given(spot, len(spot.point.recording.states) - 1, norm, question.site), question, reading, spot.run)


def _of_a_part(run: Run, question: Question, at: tuple[int, int], place: tuple[int, Step, _Part]) -> Ledger:
    """Who wrote what one sublayer reads, or what it makes of that linearly; `at` is row and position."""
    index, step, part = place
    what = question.site.removeprefix(f"{part.name}.")
    if isinstance(part, CrossAttention) and what in ("key", "value") and run.source is not None:
        spot = Spot.of(run.source, *at)
        norm = final_norm(spot.point)
        given = Given(spot, len(spot.point.recording.states) - 1, norm, "" if norm is None else norm.site)
    else:
        spot = Spot.of(run, *at)
        norm, scale = (step.shared, step.state.replace("stream", "norm.scale")) if step.shared else (part.norm, "")
        site = f"{part.name}.input"
        read = norm is not None and (step.shared is not None or part.reads_normed)
        through = ReadingNorm(norm, scale or f"{site}.scale", site, f"{part.name} norm bias") if norm and read else None
        given = Given(spot, index, through, site)
    one = alone(run, at[0])
    if what == "input":
        question.needs()
        reading = along_direction(question, run.transformer.config.d_model, spot)
    elif isinstance(part, Attention) and what in ("query", "key", "value"):
        reading = of_attention(one, spot, question, part)
    elif isinstance(part, FeedForward) and what in ("gate", "up"):
        reading = of_neurons(spot, question, part.up if what == "up" or part.gate is None else part.gate)
    else:
        raise _refusal(question.site, part)
    return _close(given, question, reading, one)


def _close(given: Given, question: Question, reading: Reading, run: Run) -> Ledger:
    """The ledger of a reading: the state's entries, then those of the norm and of the matrix behind it."""
    site, column = question.site, given.spot.point.position
    direction, ends = reading.before(site)
    direction, inner = given.before(direction)
    if reading.weight is not None and site in run.plan.sites():
        added = reading.picked(run[site][0, column]) - reading.of(given.value())
        ends.append(constant(f"edit of {site}", added, reading.direction))
    groups = (*account(given.spot, direction, question.by, given.state), *inner, *ends)
    read = partial(reading.value, site=site, column=column)
    asked = Asked(run, groups, read, given.state, column, given.spot.run.transformer is not run.transformer)
    return closed(reading.title, question.by, read(run), asked)


def _refusal(site: str, part: _Part | None) -> LedgerError:
    kind = next((kind for kind in _REFUSED if kind and site.endswith(kind)), "")
    before = "gate' or '{part}.up" if isinstance(part, FeedForward) and part.gate is not None else "up"
    name = "" if part is None else part.name
    return LedgerError(f"{site}: " + _REFUSED[kind].replace("{before}", before).replace("{part}", name))

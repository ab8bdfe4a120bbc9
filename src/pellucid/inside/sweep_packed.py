"""Many edited runs of one text in one pass, token by token side by side.

A job's tokens are those from its first column on; what stands before is the base run's, as keys and values. All jobs'
tokens lie in one row, so that every matrix is applied once to all of them and no token is computed in vain; a job joins
at its state. Only attention sees which tokens belong together: jobs that start at the same column are a group, and
attend in one batch. In the last attention only the metric's columns ask, and only they go on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..model.attention import Attention
from ..model.flow import Look, Pass
from ..model.place import Place
from ..model.transformer import Step
from .plan import Change
from .sweep_jobs import Base, Job, attention_in, change_has_keys


@dataclass(eq=False)
class _Group:
    """Jobs that start at one column, in the order in which they join; `columns` are those that are computed."""

    jobs: list[Job]
    columns: list[int]
    place: Place
    joined: int = 0

    @property
    def size(self) -> int:
        """How many tokens the group has in the pass."""
        return self.joined * len(self.columns)


class Packed:
    """One pass of some jobs, given in the order of `key`: those of one column together, by state."""

    def __init__(self, base: Base, jobs: Sequence[Job]):
        self.base, self.jobs = base, list(jobs)
        self.transformer, self.steps = base.run.transformer, base.run.transformer.steps
        self.groups = [self._group(column) for column in dict.fromkeys(job.column for job in jobs)]
        self.edited: dict[str, list[tuple[_Group, int, Change]]] = {}
        for group in self.groups:
            for row, job in enumerate(group.jobs):
                for change in job.changes:
                    self.edited.setdefault(change.site.name, []).append((group, row, change))
        sites = (self.base.looks.keys() | self.edited.keys()) - set(base.names)
        self.looks: dict[str, Look] = {site: self._look(site) for site in sites if not _between(site)}
        self.between = {site for site in sites if _between(site)}
        self.here = self._pass()

    def final_states(self) -> Float[Tensor, "J P D"]:
        """Each job's final stream at the metric's columns."""
        x = self.base.run.states[0][:, :0]
        for index, step in enumerate(self.steps):
            x = self._enter(index, x)
            if x.shape[1] or index == self.base.mixing[-1]:
                x = self._step(index, step, x)
        return self._leave(self._enter(len(self.steps), x))

    def _group(self, column: int) -> _Group:
        jobs = [job for job in self.jobs if job.column == column]
        columns = list(range(column, self.base.here.place.positions.shape[1]))
        return _Group(jobs, columns, self._place(columns))

    def _place(self, columns: list[int]) -> Place:
        whole = self.base.here.place
        if len(columns) == whole.positions.shape[1]:
            return whole  # the very same object tells attention that the mask is a plain triangle
        return Place(whole.positions[:, columns], None, columns[-1] + 1 if columns else 0, whole.length)

    def _enter(self, index: int, x: Float[Tensor, "1 N D"]) -> Float[Tensor, "1 M D"]:
        """Let the jobs of a state join, and make the edits of that state."""
        site = self.base.names[index]
        if x.shape[1] and site in self.base.looks:
            x = self.base.looks[site](x, self.here.place, None)
        pieces, sizes = [], [group.size for group in self.groups]
        for group, old in zip(self.groups, x.split(sizes, 1), strict=True):
            new = [self._first(index, job, group) for job in self._joining(index, group)]
            group.joined += len(new)
            pieces += [old, *new]
        if len(pieces) > len(self.groups):
            x = torch.cat(pieces, 1)
            self.here = self._pass()
        return self._changed(site, x)

    def _joining(self, index: int, group: _Group) -> Iterator[Job]:
        for job in group.jobs[group.joined :]:
            if max(job.state, 0) > index:
                return
            yield job

    def _first(self, index: int, job: Job, group: _Group) -> Float[Tensor, "1 W D"]:
        """The state that a job starts from: the base run's, or embeddings made with its edits."""
        run = self.base.run
        if job.state >= 0:
            state = run.states[index]
            return state if len(group.columns) == state.shape[1] else state[:, group.columns]
        looks = dict(self.base.looks)
        for change in job.changes:
            looks[change.site.name] = _after(looks.get(change.site.name), change)
        here = replace(self.base.here, place=group.place, looks=looks)
        types = None if run.recording.types is None else run.recording.types[:, group.columns]
        x = self.transformer.embed(run.ids[:, group.columns], here, types)
        state = self.base.looks.get(self.base.names[0])
        return x if state is None else state(x, group.place, None)

    def _pass(self) -> Pass:
        """Where the tokens of all groups stand, and who looks at them."""
        columns = torch.cat([group.place.positions[0].repeat(group.joined) for group in self.groups])
        rotation = self.base.here.rotation
        if rotation is not None:
            rotation = rotation[0][:, columns], rotation[1][:, columns]
        whole = self.base.here.place
        return replace(
            self.base.here, place=Place(columns[None], None, whole.end, whole.length), rotation=rotation,
            looks=self.looks or None,
        )  # fmt: skip

    def _step(self, index: int, step: Step, x: Float[Tensor, "1 N D"]) -> Float[Tensor, "1 M D"]:
        source, attention = step.source(x, self.here), attention_in(step.parts)
        if attention is None:
            return step.close(x, [part(source, self.here) for part in step.parts], self.here)
        query, key, value = attention.project(attention.read(source, self.here), self.here)
        sizes = [group.size for group in self.groups]
        if index == self.base.mixing[-1]:
            kept = self._narrow()
            x, source, query = x[:, kept], source[:, kept], query[:, kept]
        earlier = self.base.keys_values(index)
        keys = [_behind(*each) for each in self._by_group(earlier[0], key.split(sizes, 1))]
        values = [_behind(*each) for each in self._by_group(earlier[1], value.split(sizes, 1))]
        updates = [self._attend(attention, query, keys, values)]
        updates += [part(source, self.here) for part in step.parts[1:]]
        return step.close(x, updates, self.here)

    def _by_group(self, earlier: Tensor, own: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor, int]]:
        for group, tensor in zip(self.groups, own, strict=True):
            yield earlier[:, : group.jobs[0].column], tensor, group.joined

    def _narrow(self) -> Int[Tensor, "N"]:
        """Go on with the metric's columns only; gives which of the tokens those are."""
        kept, start, wanted = [], 0, sorted(set(self.base.at))
        for group in self.groups:
            width, first = len(group.columns), group.jobs[0].column
            inner = torch.tensor([column - first for column in wanted if column >= first], dtype=torch.long)
            rows = torch.arange(group.joined)[:, None] * width
            kept.append((start + rows + inner).flatten())
            start += group.size
            group.columns = [column for column in wanted if column >= first]
            group.place = self._place(group.columns)
        self.here = self._pass()
        return torch.cat(kept).to(self.here.place.positions.device)

    def _attend(
        self, part: Attention, query: Float[Tensor, "1 N H K"], keys: list[Tensor], values: list[Tensor]
    ) -> Float[Tensor, "1 N D"]:
        """Each group's queries over its own keys and those of the base run before them."""
        watched = {f"{part.name}.scores", f"{part.name}.pattern"} & self.between
        heads = []
        sizes = [group.size for group in self.groups]
        for group, own, key, value in zip(self.groups, query.split(sizes, 1), keys, values, strict=True):
            if own.shape[1] == 0:
                heads.append(own)
                continue
            looks = {site: self._look_between(site, group) for site in watched}
            here = replace(self.here, place=group.place, looks=looks or None)
            attend = part.open if watched else part.fused
            found = attend(own[0].unflatten(0, (group.joined, -1)), key, value, self.base.here.place, here)
            heads.append(found.flatten(0, 1)[None])
        return part.write(self.here.look(f"{part.name}.heads", torch.cat(heads, 1)), self.here)

    def _leave(self, x: Float[Tensor, "1 N D"]) -> Float[Tensor, "J P D"]:
        """The final states by job; at columns before a job's first they are the base run's."""
        wanted = sorted(set(self.base.at))
        found = self.base.run.states[-1][:, wanted].repeat(len(self.jobs), 1, 1)
        row = 0
        for group, piece in zip(self.groups, x.split([group.size for group in self.groups], 1), strict=True):
            width = len(group.columns)
            if width:
                found[row : row + group.joined, len(wanted) - width :] = piece[0].unflatten(0, (group.joined, width))
            row += group.joined
        return found[:, [wanted.index(column) for column in self.base.at]]

    def _look(self, site: str) -> Look:
        first = self.base.looks.get(site)

        def see(value: Tensor, place: Place, keys: Place | None) -> Tensor:
            return self._changed(site, value if first is None else first(value, place, keys))

        return see

    def _look_between(self, site: str, group: _Group) -> Look:
        """A look at what stands between a group's queries and keys, one job a row."""
        first = self.base.looks.get(site)
        mine = [(row, change) for each, row, change in self.edited.get(site, ()) if each is group]

        def see(value: Tensor, place: Place, keys: Place | None) -> Tensor:
            value = value if first is None else first(value, place, keys)
            value = value.clone() if mine else value
            for row, change in mine:
                if row < group.joined:
                    value[row : row + 1] = change(value[row : row + 1], place, keys)
            return value

        return see

    def _changed(self, site: str, value: Float[Tensor, "1 N ..."]) -> Float[Tensor, "1 N ..."]:
        """A value with each job's own edits of it."""
        mine = [each for each in self.edited.get(site, ()) if each[1] < each[0].joined]
        if not mine:
            return value
        value, starts, start = value.clone(), {}, 0
        for group in self.groups:
            starts[id(group)] = start
            start += group.size
        for group, row, change in mine:
            first = starts[id(group)] + row * len(group.columns)
            here = slice(first, first + len(group.columns))
            value[:, here] = change(value[:, here], group.place, None)
        return value


def logits_of(base: Base, jobs: Sequence[Job], finals: Float[Tensor, "J P D"]) -> Float[Tensor, "J P V"]:
    """The logits of final states, with each job's own edits of what comes after them."""
    rows, width = finals.shape[:2]
    whole = base.here.place
    own = Place(whole.positions[:, base.at], None, whole.end, whole.length)
    looks = dict(base.looks)
    for row, job in enumerate(jobs):
        for change in job.changes:
            if change.site.name.removeprefix(base.run.transformer.prefix).startswith(("final.", "head.", "logits")):
                looks[change.site.name] = _after(looks.get(change.site.name), change, (row * width, own))
    place = replace(own, positions=own.positions.repeat(1, rows))
    here = replace(base.here, place=place, rotation=None, looks=looks or None)
    return base.run.transformer.logits(finals.flatten(0, 1)[None], here)[0].unflatten(0, (rows, width))


def key(job: Job) -> tuple[int, int]:
    """The order of jobs in a pass."""
    return job.column, job.state


def _between(site: str) -> bool:
    """Whether a site stands between queries and keys of the text itself."""
    return change_has_keys(site) and ".attention." in site


def _behind(earlier: Float[Tensor, "1 C G K"], own: Float[Tensor, "1 N G K"], rows: int) -> Float[Tensor, "R S G K"]:
    """A group's keys or values, row by row, behind the base run's of the columns before."""
    if rows == 0:
        return own
    own = own[0].unflatten(0, (rows, -1))
    return own if earlier.shape[1] == 0 else torch.cat((earlier.expand(rows, -1, -1, -1), own), 1)


def _after(first: Look | None, change: Change, only: tuple[int, Place] | None = None) -> Look:
    """A change behind another look; `only` one job's columns, where those of several lie side by side."""

    def see(value: Tensor, place: Place, keys: Place | None) -> Tensor:
        value = value if first is None else first(value, place, keys)
        if only is None:
            return change(value, place, keys)
        here = slice(only[0], only[0] + only[1].positions.shape[1])
        value = value.clone()
        value[:, here] = change(value[:, here], only[1], keys)
        return value

    return see

"""Edits written into the weights: a new model that does by itself what this one does when it is edited.

An edit of a value at every position, of all of it or of some heads or neurons, that zeroes, sets, adds or scales is the
map x -> s x + c of each number. Where a matrix makes the value, or reads it, that map is taken into the matrix and its
bias, in float64. Whatever else an edit may be has no weights that say it, and is refused with the reason.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..model.attention import Attention, CrossAttention
from ..model.layers import Linear, Norm
from ..model.rotary import Rotary
from ..model.transformer import Embedding, FeedForward, Transformer
from .edits import Edit
from .errors import EditError
from .plan import Change, plan
from .reading import state_sites

_REASONS = {
    "noise": "noise is another number at each position",
    "knockout": "which keys are hidden is not said by weights",
    "map": "a free function is no map x -> s x + c",
    "scale": "a norm's scale depends on the text",
    "pattern": "a pattern is made of scores: it can be zeroed or scaled, not set or added to",
    "query": "queries are rotated by position, which only one factor for a whole head survives",
    "key": "keys are rotated by position, which only one factor for a whole head survives",
    "token": "the token embedding is tied to the unembedding, or lent to the encoder, which would change too",
    "logits": "the unembedding is left as it is",
}


@dataclass(frozen=True, eq=False)
class Affine:
    """x -> `scale` x + `shift`, number by number, of the axes that a site has beside B, T and S."""

    scale: Float[Tensor, "*axes"]
    shift: Float[Tensor, "*axes"]

    @classmethod
    def none(cls, *shape: int) -> "Affine":
        """What leaves every number as it is."""
        return cls(torch.ones(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64))

    def then(self, change: Change) -> "Affine":
        """This map, and one edit after it."""
        scale, shift, inner, edit = self.scale.clone(), self.shift.clone(), change.inner(), change.edit
        where = () if inner is None else (*[slice(None)] * (inner[0] - 1), inner[1])
        value = torch.zeros((), dtype=torch.float64) if edit.value is None else edit.value.detach().cpu().double()
        if edit.kind == "scale":
            scale[where], shift[where] = scale[where] * edit.factor, shift[where] * edit.factor
        elif edit.kind == "add":
            shift[where] = shift[where] + value
        else:
            scale[where], shift[where] = 0.0, value.expand_as(shift[where])
        return Affine(scale, shift)

    def then_scaled(self, factor: Tensor) -> "Affine":
        """This map, and a factor after it."""
        return Affine(self.scale * factor, self.shift * factor)

    def flat(self) -> "Affine":
        """The same of the numbers in one row."""
        return Affine(self.scale.flatten(), self.shift.flatten())

    @property
    def changes_nothing(self) -> bool:
        """Whether every number stays as it is."""
        return self.only_shifts and self.only_scales

    @property
    def only_shifts(self) -> bool:
        """Whether no number is scaled."""
        return bool((self.scale == 1).all())

    @property
    def only_scales(self) -> bool:
        """Whether nothing is added."""
        return not bool(self.shift.any())


@torch.no_grad()
def baked(transformer: Transformer, edits: Sequence[Edit]) -> Transformer:
    """A new transformer with the edits in its weights; the given one stays as it is.

    Its logits are those of the edited model, up to rounding. Raises SiteError or EditError for edits that make no sense
    for the model, and EditError, naming why, for one that no weights of this model say.
    """
    changes = plan(transformer, edits).changes
    for change in changes:
        _check(change)
    new = copy.deepcopy(transformer)
    stacks = [new] if new.encoder is None else [new.encoder, new]
    for stack in stacks:
        own = [change for change in changes if change.site.name.startswith(stack.prefix)]
        _Baking(stack, _maps(stack, own)).run()
    return new


def _check(change: Change) -> None:
    edit = change.edit
    if edit.kind in _REASONS and edit.kind != "scale":
        raise _refusal(change.site.name, _REASONS[edit.kind])
    if edit.positions is not None or edit.at is not None or edit.keys is not None:
        raise _refusal(change.site.name, "it is narrowed to some positions, and weights are the same at all of them")


def _refusal(site: str, why: str) -> EditError:
    return EditError(f"the edit of {site} cannot be written into weights: {why}. Save the model with its edits instead")


def _maps(stack: Transformer, changes: Sequence[Change]) -> dict[str, Affine]:
    """The edits of each site as one map."""
    found: dict[str, Affine] = {}
    for change in changes:
        site = change.site
        sizes = zip(site.axes, site.shape(stack.config, 1), strict=True)
        shape = [size for axis, size in sizes if axis not in ("B", "T", "S")]
        found[site.name] = found.get(site.name, Affine.none(*shape)).then(change)
    return found


class _Baking:
    """One stack, and the maps that are still to be taken into its weights."""

    def __init__(self, stack: Transformer, maps: Mapping[str, Affine]):
        self.stack, self.maps, self.taken = stack, dict(maps), set[str]()

    def run(self) -> None:
        """Take in every map, in the order of the data flow. Raises EditError for one that is left over."""
        states = state_sites(self.stack)
        self._embed(self.stack.embed, states[0])
        for step, state in zip(self.stack.steps, states[1:], strict=True):
            for part in step.parts:
                self._ffn(part) if isinstance(part, FeedForward) else self._attention(part)
            self._shift(f"{step.parts[0].name}.sum", step.parts)
            if step.after is None:
                self._shift(state, step.parts)
            else:
                self._gain(step.after, state)
        if self.stack.final_norm is not None:
            self._gain(self.stack.final_norm, f"{self.stack.prefix}final.normed")
        for site in self.maps:
            ending = site.rpartition(".")[2]
            raise _refusal(site, _REASONS.get(ending, "no weights of this model hold it"))

    def _take(self, site: str, *shape: int) -> Affine:
        return self.maps.pop(site, None) or Affine.none(*shape)

    def _ffn(self, part: FeedForward) -> None:
        d, f = self.stack.config.d_model, self.stack.config.d_ff
        read = self._take(f"{part.name}.input", d)
        for name, matrix in (("gate", part.gate), ("up", part.up)):
            if matrix is not None:
                self._into(matrix, read, self._take(f"{part.name}.{name}", f), f"{part.name}.{name}")
        made, update = self._take(f"{part.name}.neurons", f), self._take(f"{part.name}.update", d)
        self._into(part.down, made, update, f"{part.name}.update")

    def _attention(self, part: Attention) -> None:
        name, H, G, K = part.name, part.H, part.G, part.K
        read = self._take(f"{name}.input", self.stack.config.d_model)
        query, key = self._rotated(part, "query", H), self._rotated(part, "key", G)
        # A number added to all of a query's scores leaves the softmax as it is.
        query = query.then_scaled(self._take(f"{name}.scores", H).scale[:, None])
        if isinstance(part, CrossAttention):
            self._into(part.query, read, query, f"{name}.query")
        else:
            every = (query, key, self._take(f"{name}.value", G, K))
            made = Affine(torch.cat([each.scale for each in every]), torch.cat([each.shift for each in every]))
            self._into(part.qkv, read, made, f"{name}.value")
        self._write(part)

    def _rotated(self, part: Attention, what: str, heads: int) -> Affine:
        """The map of queries or keys; where they are rotated, one factor a head."""
        site = f"{part.name}.{what}"
        found = self.maps.get(site)
        turns = isinstance(self.stack.config.positions, Rotary) and not isinstance(part, CrossAttention)
        if found is not None and turns and not (found.only_scales and bool((found.scale == found.scale[:, :1]).all())):
            return Affine.none(heads, part.K)  # left over, and refused in the end
        return self._take(site, heads, part.K)

    def _write(self, part: Attention) -> None:
        """Pattern, heads, writes and update, all of them in W_O and its bias."""
        name, H, K, d = part.name, part.H, part.K, self.stack.config.d_model
        if not any(f"{name}.{site}" in self.maps for site in ("pattern", "heads", "writes", "update")):
            return
        matrix = part.W_O.double().cpu()
        pattern = self.maps.get(f"{name}.pattern", Affine.none(H))
        if pattern.only_scales:
            self.maps.pop(f"{name}.pattern", None)
        heads, writes = self._take(f"{name}.heads", H, K), self._take(f"{name}.writes", H, d)
        constant = torch.einsum("hk,hkd->hd", heads.shift, matrix) * writes.scale + writes.shift
        matrix = matrix * (heads.scale * pattern.scale[:, None])[..., None] * writes.scale[:, None]
        update = self._take(f"{name}.update", d)
        whole = Affine(update.scale, update.scale * constant.sum(0) + update.shift)
        _put(part.out, "weight", matrix.permute(2, 0, 1).flatten(1))
        self._into(part.out, Affine.none(H * K), whole, f"{name}.update")

    def _into(self, linear: Linear, before: Affine, after: Affine, site: str) -> None:
        """A map of what a matrix reads, and one of what it makes."""
        before, after = before.flat(), after.flat()
        if before.changes_nothing and after.changes_nothing:
            return
        matrix = linear.weight.double().cpu()
        bias = torch.zeros(len(matrix), dtype=torch.float64) if linear.bias is None else linear.bias.double().cpu()
        bias = after.scale * (bias + matrix @ before.shift) + after.shift
        _put(linear, "weight", after.scale[:, None] * matrix * before.scale)
        if linear.bias is not None:
            _put(linear, "bias", bias)
        elif bool(bias.any()):
            raise _refusal(site, "a number that is always added needs a bias, and this model has none there")

    def _shift(self, site: str, parts: Sequence[Attention | FeedForward]) -> None:
        """What is added to a sum goes to the bias of a sublayer that writes to it."""
        found = self.maps.get(site)
        if found is None or not found.only_shifts:
            return
        ends = [part.down if isinstance(part, FeedForward) else part.out for part in parts]
        end = next((each for each in ends if each.bias is not None), ends[0])
        self._into(end, Affine.none(end.weight.shape[1]), Affine(found.scale, self.maps.pop(site).shift), site)

    def _gain(self, norm: Norm, site: str) -> None:
        """What is made of a norm's result goes to its gain and its shift."""
        found = self._take(site, len(norm.weight))
        if found.changes_nothing:
            return
        _put(norm, "weight", found.scale * norm.weight.double().cpu())
        if norm.bias is not None:
            _put(norm, "bias", found.scale * norm.bias.double().cpu() + found.shift)
        elif not found.only_scales:
            raise _refusal(site, "a number that is always added needs a shift, and this model's norm has none")

    def _embed(self, embed: Embedding, state: str) -> None:
        """Embeddings go to their tables, what is added to their sum to one that every position reads."""
        config, name = self.stack.config, embed.name
        tables = {"position": embed.position, "type": embed.types}
        lends = config.encoder is not None and config.shared_embedding
        if not config.tied and not lends:
            tables["token"] = embed.token
        scales = {"token": config.embedding_scale}
        known = {each: table for each, table in tables.items() if table is not None}
        for each, table in known.items():
            found = self._take(f"{name}.{each}", config.d_model)
            if not found.changes_nothing:
                numbers = found.scale * table.weight.double().cpu() + found.shift / scales.get(each, 1.0)
                _put(table, "weight", numbers)
        if embed.norm is not None:
            self._gain(embed.norm, state)
        summed = self.maps.get(state if embed.norm is None else f"{name}.sum")
        if known and summed is not None and summed.only_shifts:
            each, table = next(iter(known.items()))
            _put(table, "weight", table.weight.double().cpu() + summed.shift / scales.get(each, 1.0))
            self.maps.pop(state if embed.norm is None else f"{name}.sum")


def _put(module: nn.Module, name: str, numbers: Tensor) -> None:
    """New numbers in place of a weight, in its precision and on its device."""
    old = module.get_parameter(name)
    new = nn.Parameter(numbers.to(old).contiguous(), requires_grad=old.requires_grad)
    setattr(module, name, new)

"""What one head does in this text: how much it writes at each token, and at one token what it brought from where."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...model.attention import Attention, CrossAttention
from ...model.config import RMSNorm
from ...model.layers import Norm
from ..accounting import Spot, final_norm, scale_of
from ..asking import account
from ..circuits import ov, qk, unembedding
from ..reading import prints
from ..run import Run
from .head_reading import raised, strongest, tokens_read, why_no_logits
from .patterns import check_part, within

SHOWN, WORDS = 8, 6  # keys that are told of, and tokens for each


def head(
    run: Run, layer: int = 0, head: int = 0, part: str = "attention", position: int = -1, token: int = -1
) -> dict[str, Any]:
    """What a head writes, and what it brought to one token.

    `norms`: the length of its write at every token. At `position`: `effect`, what the write adds to the logit of
    `token` (-1: the most probable one there) with all norms held at their scale in the run, as the ledger has it; None,
    with a `note`, where a logit is no sum. `attended` are the keys that get most attention: `amount` is what came from
    there, `writes` the tokens that the value there raises most (their logits if it got all the attention, above the
    mean), `moves` those by the weights alone, from the token's embedding. `rest` is all other keys together, and `edit`
    what an edit of the head's output changed: effect = all amounts + edit. `fits`: the keys that the query's token fits
    best by the weights alone, as far back as the first of `attended`. Raises ValueError for a part, a head or a token
    that there is not.
    """
    check_part(run, part)
    within("layer", layer, run.transformer.config.n_layers)
    within("head", head, run.transformer.config.n_heads)
    followed = None if token == -1 else run.id_of(token)

    def told(spot: Spot) -> dict[str, Any]:
        return _Head.of(spot, f"{run.transformer.prefix}{layer}.{part}", head).told(followed)

    where = {"layer": layer, "head": head, "part": part}
    return where | account(run, told, 0, position, prints(run.transformer))


@dataclass(frozen=True, eq=False)
class _Head:
    """One head of a sublayer, the run of one text, one of its tokens, and the run whose tokens are attended to."""

    spot: Spot
    index: int  # of the sublayer's step
    part: Attention
    head: int
    keys: Run

    @classmethod
    def of(cls, spot: Spot, name: str, head: int) -> "_Head":
        for index, step in enumerate(spot.point.transformer.steps):
            for part in step.parts:
                if part.name == name and isinstance(part, Attention):
                    source = spot.run.source if isinstance(part, CrossAttention) else None
                    return cls(spot, index, part, head, source or spot.run)
        raise AssertionError(f"{name} is one of the model's sublayers")

    def told(self, token: int | None) -> dict[str, Any]:
        point, run = self.spot.point, self.spot.run
        note, writes = why_no_logits(point.transformer), run.by_position(f"{self.part.name}.writes")[:, self.head]
        pattern, brought = self._brought()
        order = pattern.argsort(descending=True, stable=True)[:SHOWN].tolist()
        order = [key for key in order if float(pattern[key])]
        rest = {
            "keys": int((pattern != 0).sum()) - len(order),
            "attention": float(pattern.sum() - pattern[order].sum()),
        }
        found = {"position": self.spot.position, "norms": writes.double().norm(dim=-1).tolist(), "note": note}
        labels = self.keys.tokens()
        attended: list[dict[str, Any]] = [
            {
                "position": key,
                "token": labels[key],
                "attention": float(pattern[key]),
                "norm": float(brought[key].norm()),
            }
            for key in order
        ]
        found |= {"token": None, "effect": None, "edit": 0.0, **self._by_weights(order, attended)}
        if not note:
            token = int(point.logits.argmax()) if token is None else token
            amounts = pattern * self._logit(self._carried(brought), token)
            effect = float(self._logit(self._carried(writes[[point.position]].double()), token)[0])
            edited = any(f"{self.part.name}.{stage}" in point.edited for stage in ("heads", "writes"))
            for one, key in zip(attended, order, strict=True):
                one["amount"] = float(amounts[key])
            rest["amount"] = float(amounts.sum() - amounts[order].sum())
            found |= {"token": {"id": token, "label": point.label(token)}, "effect": effect}
            found["edit"] = effect - float(amounts.sum()) if edited else 0.0
            for one, words in zip(attended, self._words(self._carried(brought[order])), strict=True):
                one["writes"] = words
        return found | {"attended": attended, "rest": rest}

    def _brought(self) -> tuple[Float[Tensor, "S"], Float[Tensor, "S D"]]:
        """How much the token attends to each key, and what would be written of each if it got all the attention."""
        point, columns = self.spot.point, self.keys.columns()
        pattern = point.recording.read(f"{self.part.name}.pattern", point.here)[0, self.head, point.position]
        shared = self.head * self.part.G // self.part.H
        values = point.recording.read(f"{self.part.name}.value", point.here)[0, columns, shared]
        return pattern[columns].double(), values.double() @ self.part.W_O[self.head].double()

    def _carried(self, writes: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """Writes as they arrive behind the final norm, all norms on the way held; its gain is in the unembedding."""
        point, final = self.spot.point, final_norm(self.spot.point)
        for step in point.transformer.steps[self.index :]:
            if step.after is not None:
                site = f"{step.parts[0].name}.sum"
                writes = _centred(step.after, writes) * step.after.weight.double()
                writes = writes * scale_of(point, step.after, f"{site}.scale", point.read(site))
        return writes if final is None else writes * scale_of(point, final.norm, final.scale, point.state(-1)[0, 0])

    def _logit(self, carried: Float[Tensor, "N D"], token: int) -> Float[Tensor, "N"]:
        row = torch.tensor([token], device=carried.device)
        return carried @ unembedding(self.spot.point.transformer, row)[0].double()

    def _words(self, carried: Float[Tensor, "N D"]) -> list[list[list[Any]]]:
        return raised(self.spot.point.transformer, carried, WORDS, self.spot.point.tokenizer)

    def _by_weights(self, order: Sequence[int], attended: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """What the weights alone say: of the tokens attended to, and of the query's own."""
        transformer, layer = self.spot.point.transformer, self.part.layer
        if isinstance(self.part, CrossAttention) or not order:
            return {"fits": None}
        ids = self.keys.ids[0, self.keys.columns()]
        if not why_no_logits(transformer):
            moved = ov(transformer, layer, self.head)
            words = raised(transformer, tokens_read(transformer, layer, ids[order]) @ moved.left @ moved.right,
                           WORDS, self.spot.point.tokenizer)  # fmt: skip
            for one, found in zip(attended, words, strict=True):
                one["moves"] = found
        back = self.spot.position - order[0]
        fits = qk(transformer, layer, self.head, back, self.spot.run.place.length)
        query = tokens_read(transformer, layer, ids[[self.spot.position]]) @ fits.left @ fits.right
        scores = query @ tokens_read(transformer, layer).T * self.part.scale
        scores = scores - scores.mean()
        return {"fits": {"back": back, "keys": strongest(scores, WORDS, self.spot.point.tokenizer)[0]}}


def _centred(norm: Norm, values: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
    return values if isinstance(norm.record, RMSNorm) else values - values.mean(-1, keepdim=True)

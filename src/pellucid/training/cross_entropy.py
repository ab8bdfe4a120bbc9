"""Cross-entropy of a final stream, with the logits made and used up in tiles, so that they are never held whole.

Axes: N positions with a target, D width, V vocabulary; n and v are those of one tile.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

# The most logits that are held at a time. On one core, for 1,024 positions of width 256 and 50,257 words, tiles take
# the time of whole logits and 127 MB in place of 598; tiles of a quarter of the size half as long again. So few logits
# as one tile holds are not worth tiles, and torch's own cross-entropy makes them.
TILE = 1 << 23
ROWS = 64  # the least positions of a tile; where they do not fit, the vocabulary is cut too, and logits are made twice


@dataclass(frozen=True)
class Unembedded:
    """What makes logits of a stream: (x W_U^T + b) times a scale."""

    weight: Float[Tensor, "V D"]
    bias: Float[Tensor, " V"] | None = None
    scale: float = 1.0


def cross_entropy(
    x: Float[Tensor, "N D"], out: Unembedded, targets: Int[Tensor, " N"], smoothing: float = 0.0, tile: int = TILE
) -> Float[Tensor, ""]:
    """The sum of the targets' losses, in nats and at least fp32; every row needs a target.

    With label `smoothing` e a target has the probability 1 - e + e/V, every other token e/V (Szegedy et al. 2016).
    Gradients are made together with the loss, where they are wanted, and so exist once: a second backward pass through
    the same loss is an error.
    """
    if x.shape[0] * out.weight.shape[0] <= tile:
        logits = F.linear(x, out.weight, out.bias)
        logits = (logits if out.scale == 1.0 else logits * out.scale).to(_exact(logits))
        return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    return _Tiled.apply(x, out.weight, out.bias, targets, (out.scale, smoothing, tile))


def log_probabilities(
    x: Float[Tensor, "N D"], out: Unembedded, targets: Int[Tensor, " N"], tile: int = TILE
) -> tuple[Float[Tensor, " N"], Bool[Tensor, " N"]]:
    """The logarithm of each target's probability, and whether no other token is more probable."""
    found = []
    for rows in _cut(x.shape[0], max(1, tile // out.weight.shape[0])) or [slice(0)]:
        logits = F.linear(x[rows], out.weight, out.bias)
        logits = logits.to(_exact(logits)) * out.scale
        own = logits.gather(1, targets[rows, None])
        found.append(((own[:, 0] - logits.logsumexp(1)), (own >= logits).all(1)))
    return torch.cat([each for each, _ in found]), torch.cat([each for _, each in found])


class _Tiled(torch.autograd.Function):
    """Loss and gradients in one pass: the gradient of a sum of losses by the logits is softmax minus target, so that
    each tile of logits is turned into its gradient in place, and used up."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, how: tuple[float, float, int]
    ) -> Tensor:
        kind = x.device.type
        cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        with torch.autocast(kind, enabled=False):
            tiles = _Tiles(x.to(cast), weight.to(cast), None if bias is None else bias.to(cast), *how)
            wanted = tuple(ctx.needs_input_grad[:3])
            loss, grads = tiles.run(targets, wanted)
        kinds = (x, weight, bias)
        ctx.grads = [None if g is None or t is None else g.to(t.dtype) for g, t in zip(grads, kinds, strict=True)]
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if ctx.grads is None:
            raise RuntimeError("the gradients of this loss were handed on already: make the loss again")
        found, ctx.grads = ctx.grads, None
        if bool(grads[0] != 1.0):
            found = [None if grad is None else grad.mul_(grads[0]) for grad in found]
        return *found, None, None


class _Tiles:
    """One pass over all tiles."""

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor | None, scale: float, smoothing: float, tile: int):
        self.x, self.weight, self.bias, self.scale, self.smoothing = x, weight, bias, scale, smoothing
        n, v = x.shape[0], weight.shape[0]
        rows = min(n, max(ROWS, tile // v))
        self.rows, self.words = _cut(n, rows), list(_cut(v, max(1, tile // rows)))

    def run(self, targets: Tensor, wanted: tuple[bool, ...]) -> tuple[Tensor, list[Tensor | None]]:
        """The loss, and the gradients by x, weight and bias that are wanted, sums in at least fp32."""
        exact, loss = _exact(self.x), torch.zeros((), dtype=_exact(self.x), device=self.x.device)
        sources = (self.x, self.weight, self.bias)
        grads = [
            torch.zeros_like(source, dtype=exact) if want and source is not None else None
            for source, want in zip(sources, wanted, strict=True)
        ]
        for rows in self.rows:
            loss += self._rows(rows, targets[rows], grads)
        return loss, grads

    def _rows(self, rows: slice, targets: Tensor, grads: list[Tensor | None]) -> Tensor:
        """The loss of some positions, all of whose logits are passed over; their gradients are added."""
        normal, own, total, tile = self._normaliser(rows, targets)
        for words in self.words if any(grad is not None for grad in grads) else ():
            # One tile in all is still at hand; several are made again, now that their common normaliser is known.
            grad = tile if len(self.words) == 1 else self._logits(rows, words)
            grad.sub_(normal[:, None]).exp_().sub_(self.smoothing / self.weight.shape[0])
            here = (targets >= words.start) & (targets < words.stop)
            at = here.nonzero()[:, 0], targets[here] - words.start
            grad[at] -= 1.0 - self.smoothing
            self._add(grad.mul_(self.scale).to(self.x.dtype), rows, words, grads)
        return (normal - (1.0 - self.smoothing) * own - self.smoothing / self.weight.shape[0] * total).sum()

    def _normaliser(self, rows: slice, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """For each position the logarithm of the sum of exponentials, the target's logit, and the sum of all logits;
        and the last tile."""
        own = total = torch.zeros_like(targets, dtype=_exact(self.x))
        parts, tile = [], own
        for words in self.words:
            tile = self._logits(rows, words)
            parts.append(tile.logsumexp(1))
            at = (targets - words.start).clamp(0, words.stop - words.start - 1)[:, None]
            here = (targets >= words.start) & (targets < words.stop)
            own = torch.where(here, tile.gather(1, at)[:, 0], own)
            total = total + tile.sum(1) if self.smoothing else total
        return torch.stack(parts).logsumexp(0), own, total, tile

    def _logits(self, rows: slice, words: slice) -> Tensor:
        bias = None if self.bias is None else self.bias[words]
        logits = F.linear(self.x[rows], self.weight[words], bias)
        return logits.to(_exact(logits)).mul_(self.scale)

    def _add(self, grad: Tensor, rows: slice, words: slice, grads: list[Tensor | None]) -> None:
        by_x, by_weight, by_bias = grads
        if by_x is not None:
            _add_product(by_x[rows], grad, self.weight[words])
        if by_weight is not None:
            _add_product(by_weight[words], grad.T, self.x[rows])
        if by_bias is not None:
            by_bias[words] += grad.sum(0, dtype=by_bias.dtype)


def _add_product(into: Tensor, left: Tensor, right: Tensor) -> None:
    if into.dtype == left.dtype:
        into.addmm_(left, right)
    else:
        into += left @ right


def _exact(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _cut(size: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]

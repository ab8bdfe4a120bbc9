"""What one step of training reads."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ..model.transformer import Transformer

NO_TARGET = -100  # what torch's cross-entropy leaves out


@dataclass(frozen=True)
class Batch:
    """Rows of ids, and for each position the id that is to be predicted there, or -100 where nothing is.

    The masks are 1 where a column holds a token and 0 where it is padding; `types` are BERT's token types, `source` the
    text that an encoder reads.
    """

    ids: Int[Tensor, "B T"]
    targets: Int[Tensor, "B T"]
    mask: Shaped[Tensor, "B T"] | None = None
    types: Int[Tensor, "B T"] | None = None
    source: Int[Tensor, "B S"] | None = None
    source_mask: Shaped[Tensor, "B S"] | None = None

    def to(self, device: torch.device | str) -> Self:
        """The same batch on another device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def rows(self, first: int, last: int) -> Self:
        """Some of the rows."""
        return self._each(lambda tensor: tensor[first:last])

    def padded(self, rows: int) -> Self:
        """The batch with `rows` rows: those that it lacks repeat the first one, without targets."""
        lacks = rows - len(self.ids)
        if lacks <= 0:
            return self
        longer = self._each(lambda tensor: torch.cat([tensor, tensor[:1].expand(lacks, *tensor.shape[1:])]))
        longer.targets[-lacks:] = NO_TARGET
        return longer

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        held = {name: value for name, value in vars(self).items() if value is not None}
        return replace(self, **{name: change(value) for name, value in held.items()})


# (transformer, batch) -> (the sum of the targets' losses, a tensor of no dimension that gradients flow from; how many
# targets there were). The loop divides the sums of a step by the step's own count: a mean of means weighs wrongly.
Objective = Callable[[Transformer, Batch], tuple[Float[Tensor, ""], int]]

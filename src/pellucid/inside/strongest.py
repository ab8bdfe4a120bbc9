"""The strongest of a stream of values, for many neurons at once, kept while the stream goes by."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Strongest:
    """The k highest values of every neuron of every layer, highest first, and where each of them was seen.

    Of equal values the one that was seen first comes first, and is kept; `seen` says of each value what was told of its
    column. Places that nothing was seen for yet hold -inf. The tensors are changed in place as values come.
    """

    values: Float[Tensor, "L k F"]
    seen: Int[Tensor, "L k F C"]

    @classmethod
    def none(cls, layers: int, k: int, width: int, told: int, like: Tensor) -> "Strongest":
        """Nothing seen yet; the values' precision and device are those of `like`."""
        values = torch.full((layers, k, width), -torch.inf, dtype=like.dtype, device=like.device)
        return cls(values, torch.full((layers, k, width, told), -1, dtype=torch.int32, device=like.device))

    def take(self, layer: int, values: Float[Tensor, "N F"], seen: Int[Tensor, "N C"]) -> None:
        """N more values of each of a layer's neurons, in the order in which they stand in the text."""
        k, kept = self.values.shape[1], self.values[layer]
        grown = (values.amax(0) > kept[-1]).nonzero().flatten()
        if not len(grown):
            return
        values = values[:, grown]
        at = _highest(values, k)
        both = torch.cat((kept[:, grown], values.gather(0, at)))
        order = both.sort(dim=0, descending=True, stable=True).indices[:k]
        here = torch.arange(len(grown), device=grown.device).expand_as(order)
        told = torch.cat((self.seen[layer][:, grown], seen[at]))
        self.values[layer][:, grown] = both.gather(0, order)
        self.seen[layer][:, grown] = told[order, here]


def _highest(values: Float[Tensor, "N F"], k: int) -> Int[Tensor, "most F"]:
    """Which rows hold the k highest values of each column, in the order of the rows; of equal ones the first rows."""
    k = min(k, values.shape[0])
    found = values.topk(k, dim=0)
    at = found.indices
    # topk takes any of those that are equal to the last: there, and only there, the rows are put in order instead.
    tied = ((values >= found.values[-1]).sum(0) > k).nonzero().flatten()
    if len(tied):
        at[:, tied] = values[:, tied].sort(dim=0, descending=True, stable=True).indices[:k]
    return at.sort(dim=0).values

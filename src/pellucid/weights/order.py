"""The order of rows in a file's fused queries, keys and values, where it is not ours.

Ours is all query heads, then all key heads, then all value heads, and rotation turns features i and i + n/2 of a head
together, n being the number of rotated ones. An order is a permutation of the rows of ours: row i of the file's is row
order[i] of ours. Reading takes it backwards, saving forwards.
"""

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from ..model.config import Config
from ..model.rotary import Rotary

Order = Callable[[Config], Int[Tensor, " rows"]]


def neighbours(config: Config) -> Int[Tensor, " rows"]:
    """Rotation turns features 2i and 2i + 1 of a head together (Meta's files, GGUF's llama); values stay in place."""
    width, heads = config.d_head, config.n_heads + config.n_kv_heads
    n = config.positions.width(width) if isinstance(config.positions, Rotary) else 0
    turned = torch.cat((torch.arange(n).view(2, -1).T.flatten(), torch.arange(n, width)))
    values = torch.arange(heads * width, (heads + config.n_kv_heads) * width)
    return torch.cat(((torch.arange(heads)[:, None] * width + turned).flatten(), values))


def by_head(config: Config) -> Int[Tensor, " rows"]:
    """Each head's query, key and value stand together (GPT-NeoX), which takes as many key heads as query heads."""
    rows = torch.arange(3 * config.n_heads * config.d_head)
    return rows.view(3, config.n_heads, config.d_head).transpose(0, 1).flatten()

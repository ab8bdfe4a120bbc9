"""Attention: the one sublayer in which positions meet.

Axes: B batch, T position, S key position, H query heads, G key-value heads, D model width, K head width,
E the encoder's width.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .config import Bidirectional, Config, Parallel, PostNorm
from .flow import Pass
from .layers import Linear, Norm, normalise
from .place import Place, is_plain_causal, sees_everything, visible
from .rotary import rotate


class Sublayer(nn.Module):
    """What reads the stream and gives back an update: through its norm, which in a post-norm model follows the sum."""

    def __init__(self, config: Config, name: str):
        super().__init__()
        self.name = name
        own = not (isinstance(config.block, Parallel) and config.block.norms == 1)
        self.norm = Norm(config.norm, config.d_model) if own else None
        self.reads_normed = own and not isinstance(config.block, PostNorm)

    def read(self, x: Float[Tensor, "B T D"], here: Pass) -> Float[Tensor, "B T D"]:
        """The copy of a state that is read, normalised in a pre-norm model; the state itself stays as it is."""
        if self.reads_normed and self.norm is not None:
            x = normalise(self.norm, x, here, f"{self.name}.input.scale")
        return here.look(f"{self.name}.input", x)


class Attention(Sublayer):
    """softmax(Q K^T / sqrt(d_k) + mask) V W_O, with H query heads over G key-value heads (Vaswani et al. 2017)."""

    def __init__(self, config: Config, layer: int, prefix: str = ""):
        super().__init__(config, f"{prefix}{layer}.attention")
        self.layer, self.H, self.G, self.K = layer, config.n_heads, config.n_kv_heads, config.d_head
        self.mask, self.scale = config.mask(layer), config.attention_scale(layer)
        self.qkv = Linear(config.d_model, (self.H + 2 * self.G) * self.K, config.qkv_bias)
        self.out = Linear(self.H * self.K, config.d_model, config.out_bias)

    def forward(self, x: Float[Tensor, "B T D"], here: Pass) -> Float[Tensor, "B T D"]:
        query, key, value = self.project(self.read(x, here), here)
        keys = here.place
        if here.past is not None:
            key, value, keys = here.past(self.layer, key, value, here.place)
        return self.mix(query, key, value, keys, here)

    def project(self, x: Float[Tensor, "B T D"], here: Pass) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B T H K], keys and values [B T G K] as they are compared: projected, and rotated if that is how."""
        query, key, value = self.qkv(x).unflatten(-1, (-1, self.K)).split((self.H, self.G, self.G), dim=-2)
        if here.rotation is not None:
            query, key = rotate(query, *here.rotation), rotate(key, *here.rotation)
        query = here.look(f"{self.name}.query", query)
        key = here.look(f"{self.name}.key", key)
        return query, key, here.look(f"{self.name}.value", value)

    def mix(self, query: Tensor, key: Tensor, value: Tensor, keys: Place, here: Pass) -> Float[Tensor, "B T D"]:
        """Each query's mixture of values, head by head, and what the heads write."""
        watched = here.watches(f"{self.name}.scores", f"{self.name}.pattern")
        heads = (self.open if watched else self.fused)(query, key, value, keys, here)
        return self.write(here.look(f"{self.name}.heads", heads), here)

    def fused(self, query: Tensor, key: Tensor, value: Tensor, keys: Place, here: Pass) -> Float[Tensor, "B T H K"]:
        """Attention in one kernel, where nobody looks: no scores and no pattern are ever held."""
        causal = is_plain_causal(self.mask, here.place, keys)
        seen = None
        if not causal and not sees_everything(self.mask, here.place, keys):
            seen = visible(self.mask, here.place, keys)[:, None]
        heads = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            attn_mask=seen,
            dropout_p=here.dropout.attention,
            is_causal=causal,
            scale=self.scale,
            enable_gqa=self.H != self.G,
        )
        return heads.transpose(1, 2)

    def open(self, query: Tensor, key: Tensor, value: Tensor, keys: Place, here: Pass) -> Float[Tensor, "B T H K"]:
        """Attention step by step, in at least fp32, for whoever looks at the scores or the pattern."""
        exact = torch.promote_types(query.dtype, torch.float32)
        key = key.repeat_interleave(self.H // self.G, dim=2)
        value = value.repeat_interleave(self.H // self.G, dim=2)
        scores = torch.einsum("bthk,bshk->bhts", query.to(exact), key.to(exact)) * self.scale
        scores = here.look(f"{self.name}.scores", scores, keys)
        scores = scores.masked_fill(~visible(self.mask, here.place, keys)[:, None], -torch.inf)
        # A query that may see nothing attends to nothing: zeros, where softmax alone would give 0/0.
        pattern = scores.softmax(-1).masked_fill(scores == -torch.inf, 0.0)
        pattern = here.look(f"{self.name}.pattern", pattern, keys)
        pattern = F.dropout(pattern, here.dropout.attention)
        return torch.einsum("bhts,bshk->bthk", pattern.to(value.dtype), value)

    def write(self, heads: Float[Tensor, "B T H K"], here: Pass) -> Float[Tensor, "B T D"]:
        """The sum of head_h W_O^h, plus the bias; by head only where someone looks."""
        if here.watches(f"{self.name}.writes"):
            writes = here.look(f"{self.name}.writes", torch.einsum("bthk,hkd->bthd", heads, self.W_O))
            update = writes.sum(2) if self.out.bias is None else writes.sum(2) + self.out.bias
        else:
            update = self.out(heads.flatten(2))
        return here.look(f"{self.name}.update", update)

    def _rows(self, first: int, heads: int) -> Float[Tensor, "heads D K"]:
        return self.qkv.weight.unflatten(0, (-1, self.K))[first : first + heads].transpose(1, 2)

    @property
    def W_Q(self) -> Float[Tensor, "H D K"]:
        """Each head's query matrix, a view of the fused weight; `x @ W_Q[h]`."""
        return self._rows(0, self.H)

    @property
    def W_K(self) -> Float[Tensor, "G D K"]:
        """Each key-value head's key matrix, a view."""
        return self._rows(self.H, self.G)

    @property
    def W_V(self) -> Float[Tensor, "G D K"]:
        """Each key-value head's value matrix, a view."""
        return self._rows(self.H + self.G, self.G)

    @property
    def W_O(self) -> Float[Tensor, "H K D"]:
        """Each head's output matrix, a view; `head @ W_O[h]` is what the head writes."""
        return self.out.weight.unflatten(1, (self.H, self.K)).permute(1, 2, 0)


class CrossAttention(Attention):
    """Attention whose keys and values are made of the encoder's final stream, all of it in sight."""

    def __init__(self, config: Config, encoder: Config, layer: int, prefix: str = ""):
        Sublayer.__init__(self, config, f"{prefix}{layer}.cross")
        self.layer, self.H, self.G, self.K = layer, config.n_heads, config.n_kv_heads, config.d_head
        self.mask, self.scale = Bidirectional(), config.attention_scale(layer)
        self.query = Linear(config.d_model, self.H * self.K, config.qkv_bias)
        self.kv = Linear(encoder.d_model, 2 * self.G * self.K, config.qkv_bias)
        self.out = Linear(self.H * self.K, config.d_model, config.out_bias)

    def forward(self, x: Float[Tensor, "B T D"], here: Pass) -> Float[Tensor, "B T D"]:
        assert here.memory is not None, "begin() refuses a decoder without its encoder's memory"
        query = self.query(self.read(x, here)).unflatten(-1, (self.H, self.K))
        query = here.look(f"{self.name}.query", query)
        key, value = here.memory.keys_values(self.layer, self.keys_values)
        key, value = here.look(f"{self.name}.key", key), here.look(f"{self.name}.value", value)
        return self.mix(query, key, value, here.memory.place, here)

    def keys_values(self, memory: Float[Tensor, "B S E"]) -> tuple[Tensor, Tensor]:
        """Keys and values [B S G K] of the encoder's final stream."""
        both = self.kv(memory).unflatten(-1, (2, self.G, self.K))
        return both[:, :, 0], both[:, :, 1]

    @property
    def W_Q(self) -> Float[Tensor, "H D K"]:
        return self.query.weight.unflatten(0, (-1, self.K)).transpose(1, 2)

    @property
    def W_K(self) -> Float[Tensor, "G E K"]:
        return self.kv.weight.unflatten(0, (-1, self.K))[: self.G].transpose(1, 2)

    @property
    def W_V(self) -> Float[Tensor, "G E K"]:
        return self.kv.weight.unflatten(0, (-1, self.K))[self.G :].transpose(1, 2)

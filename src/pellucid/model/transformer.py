"""The transformer. Read it from top to bottom: the data flows that way.

Axes: B batch, T position, S key position, H query heads, G key-value heads, D model width, K head width,
F feed-forward width, V vocabulary.

A forward pass is a residual stream: it starts as embeddings, and every sublayer adds a correction. The stack is a list
of states with steps between them; a step holds the sublayers that read the same state. Every value passes `Pass.look`
under its site's name, where it can be seen and replaced; with no looks given that costs nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from .cache import Cache
from .config import Config, Dropout, Learned
from .flow import Looks, Pass
from .init import initialise
from .layers import Linear, Norm, activate
from .place import Place, is_plain_causal, place_of, sees_everything, visible
from .rotary import Rotary, rotate, table


def read(norm: Norm, x: Tensor, here: Pass, site: str, scale_site: str) -> Float[Tensor, "B T D"]:
    """The normalised copy of a state that a sublayer (or the unembedding) reads; the state itself stays as it is."""
    if here.watches(scale_site):
        return here.look(site, norm.with_scale(x, here.look(scale_site, norm.scale(x))))
    return here.look(site, norm(x))


class Attention(nn.Module):
    """softmax(Q K^T / sqrt(d_k) + mask) V W_O, with H query heads over G key-value heads (Vaswani et al. 2017)."""

    def __init__(self, config: Config, layer: int):
        super().__init__()
        self.layer, self.name = layer, f"{layer}.attention"
        self.H, self.G, self.K = config.n_heads, config.n_kv_heads, config.d_head
        self.mask, self.scale = config.mask(layer), config.attention_scale(layer)
        self.norm = Norm(config.norm, config.d_model)
        self.qkv = Linear(config.d_model, (self.H + 2 * self.G) * self.K, config.qkv_bias)
        self.out = Linear(self.H * self.K, config.d_model, config.out_bias)

    def forward(self, x: Float[Tensor, "B T D"], here: Pass) -> Float[Tensor, "B T D"]:
        query, key, value = self.project(x, here)
        keys = here.place
        if here.past is not None:
            key, value, keys = here.past(self.layer, key, value, here.place)
        if here.watches(f"{self.name}.scores", f"{self.name}.pattern"):
            heads = self.open(query, key, value, keys, here)
        else:
            heads = self.fused(query, key, value, keys, here)
        return self.write(here.look(f"{self.name}.heads", heads), here)

    def project(self, x: Float[Tensor, "B T D"], here: Pass) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B T H K], keys and values [B T G K] as they are compared: normed, projected, rotated."""
        x = read(self.norm, x, here, f"{self.name}.input", f"{self.name}.input.scale")
        both = self.qkv(x).unflatten(-1, (-1, self.K))
        query, key, value = both.split((self.H, self.G, self.G), dim=-2)
        if here.rotation is not None:
            query, key = rotate(query, *here.rotation), rotate(key, *here.rotation)
        query = here.look(f"{self.name}.query", query)
        key = here.look(f"{self.name}.key", key)
        return query, key, here.look(f"{self.name}.value", value)

    def fused(self, query: Tensor, key: Tensor, value: Tensor, keys: Place, here: Pass) -> Float[Tensor, "B T H K"]:
        """Attention in one kernel: no scores and no pattern are ever held."""
        causal = is_plain_causal(here.place, keys)
        seen = None
        if not causal and not sees_everything(here.place, keys):
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


class FeedForward(nn.Module):
    """act(x W_up) W_down, or (x W_up * SiLU(x W_gate)) W_down; no position sees another."""

    def __init__(self, config: Config, layer: int):
        super().__init__()
        self.layer, self.name, self.activation = layer, f"{layer}.ffn", config.activation
        self.norm = Norm(config.norm, config.d_model)
        self.gate = Linear(config.d_model, config.d_ff, config.ffn_bias) if config.gated else None
        self.up = Linear(config.d_model, config.d_ff, config.ffn_bias)
        self.down = Linear(config.d_ff, config.d_model, config.ffn_bias)

    def forward(self, x: Float[Tensor, "B T D"], here: Pass) -> Float[Tensor, "B T D"]:
        x = read(self.norm, x, here, f"{self.name}.input", f"{self.name}.input.scale")
        if self.gate is None:
            neurons = activate(self.activation, here.look(f"{self.name}.up", self.up(x)))
        else:
            gate = here.look(f"{self.name}.gate", self.gate(x))
            neurons = here.look(f"{self.name}.up", self.up(x)) * F.silu(gate)
        neurons = here.look(f"{self.name}.neurons", neurons)
        return here.look(f"{self.name}.update", self.down(neurons))


class Block(nn.Module):
    """The two sublayers of one layer."""

    def __init__(self, config: Config, layer: int):
        super().__init__()
        self.attention = Attention(config, layer)
        self.ffn = FeedForward(config, layer)


Sublayer = Attention | FeedForward


@dataclass(frozen=True)
class Step:
    """From one state of the stream to the next: the sublayers that read the state and whose updates are added to it."""

    state: str
    parts: tuple[Sublayer, ...]


class Embedding(nn.Module):
    """Token vectors, and learned position vectors where the config has them."""

    def __init__(self, config: Config):
        super().__init__()
        self.scale = config.embedding_scale
        self.token = nn.Embedding(config.vocab_size, config.d_model)
        learned = isinstance(config.positions, Learned)
        self.position = nn.Embedding(config.context_length, config.d_model) if learned else None

    def forward(self, ids: Int[Tensor, "B T"], here: Pass) -> Float[Tensor, "B T D"]:
        token = self.token(ids)
        x = here.look("embed.token", token if self.scale == 1.0 else token * self.scale)
        if self.position is not None:
            x = x + here.look("embed.position", self.position(here.place.positions).expand_as(x))
        return F.dropout(x, here.dropout.embedding)


class Transformer(nn.Module):
    """Token ids to logits: embed, run the stack, unembed."""

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.embed = Embedding(config)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layers))
        self.final_norm = Norm(config.norm, config.d_model)
        self.unembed = None if config.tied else Linear(config.d_model, config.vocab_size, bias=False)
        initialise(self, config)

    @property
    def steps(self) -> list[Step]:
        """The stack as steps between states."""
        steps = []
        for layer, block in enumerate(cast(Iterable[Block], self.blocks)):
            steps.append(Step(f"{layer}.stream", (block.attention,)))
            steps.append(Step(f"{layer}.stream.mid", (block.ffn,)))
        return steps

    def forward(
        self, ids: Int[Tensor, "B T"], mask: Tensor | None = None, looks: Looks | None = None
    ) -> Float[Tensor, "B T V"]:
        """Logits of every position. `mask` is B x T, 1 where a column holds a token and 0 where it is padding."""
        here = self.begin(ids, mask, looks=looks)
        return self.logits(self.run(self.embed(ids, here), here), here)

    def begin(
        self,
        ids: Int[Tensor, "B T"],
        mask: Tensor | None = None,
        cache: Cache | None = None,
        looks: Looks | None = None,
        length: int | None = None,
    ) -> Pass:
        """Check the input and say where it stands. With a `cache` the columns follow those it holds.

        `length` declares the total length for rotary scalings that depend on it. Raises ValueError for an empty
        input, ids outside the vocabulary, or more positions than a learned table has, before any kernel runs.
        """
        check_ids(ids, self.config.vocab_size)
        place = place_of((ids.shape[0], ids.shape[1]), mask, ids.device, cache.place if cache else None, length)
        if isinstance(self.config.positions, Learned) and place.end > self.config.context_length:
            raise ValueError(
                f"the input has {place.end} positions, the position table only {self.config.context_length}: shorten it"
            )
        if cache is not None:
            cache.extend(place)
        dropout = self.config.dropout if self.training else Dropout()
        return Pass(place, self.rotation(place), cache, looks, dropout)

    def rotation(self, place: Place) -> tuple[Tensor, Tensor] | None:
        """cos and sin of the columns at hand, where positions are rotary."""
        if not isinstance(self.config.positions, Rotary):
            return None
        dtype = self.embed.token.weight.dtype
        return table(self.config.positions, self.config.d_head, place.positions, place.length, dtype)

    def run(
        self, x: Float[Tensor, "B T D"], here: Pass, first: int = 0, last: int | None = None
    ) -> Float[Tensor, "B T D"]:
        """Take the stream from state `first` to state `last` (counted in steps; None: to the end)."""
        steps = self.steps
        for step in steps[first:last]:
            x = here.look(step.state, x)
            updates = [part(x, here) for part in step.parts]
            for update in updates:
                x = x + F.dropout(update, here.dropout.update)
        return here.look(f"{len(self.blocks)}.stream", x) if last in (None, len(steps)) else x

    def logits(self, x: Float[Tensor, "B T D"], here: Pass) -> Float[Tensor, "B T V"]:
        """The unembedding: the final norm, then E^T (tied) or its own matrix."""
        x = read(self.final_norm, x, here, "final.normed", "final.scale")
        logits = F.linear(x, self.embed.token.weight) if self.unembed is None else self.unembed(x)
        return here.look("logits", logits if self.config.logit_scale == 1.0 else logits * self.config.logit_scale)

    @property
    def W_U(self) -> Float[Tensor, "V D"]:
        """The unembedding's matrix, one row a token."""
        return self.embed.token.weight if self.unembed is None else self.unembed.weight


def check_ids(ids: Tensor, vocab_size: int) -> None:
    """Refuse what no embedding can take, before a kernel meets it."""
    if ids.ndim != 2 or ids.numel() == 0:
        raise ValueError(f"ids must be batch x positions with at least one of each, got shape {tuple(ids.shape)}")
    if torch.compiler.is_compiling():
        return
    low, high = (int(end) for end in ids.aminmax())
    if low < 0 or high >= vocab_size:
        raise ValueError(f"ids must lie in 0..{vocab_size - 1}, got {low if low < 0 else high}")

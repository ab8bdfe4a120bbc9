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

from .activation import activate
from .attention import Attention, CrossAttention, Sublayer
from .cache import Cache
from .config import Config, Dropout, Learned, MaskedLanguage, Parallel, PostNorm, Sinusoidal
from .flow import Looks, Memory, Pass
from .heads import PredictionHead, Unembedding, first_token
from .init import initialise
from .layers import Linear, Norm, normalise
from .place import Place, place_of
from .rotary import Rotary, table
from .sinusoid import sinusoid


class Embedding(nn.Module):
    """Token vectors, and where the config has them position and token-type vectors, and a norm over the sum.

    An encoder may be `lent` the decoder's token vectors; in a tuple, so that they are not counted as its own.
    """

    def __init__(self, config: Config, prefix: str, lent: tuple[nn.Embedding, ...] = ()):
        super().__init__()
        self.name, self.scale, self.lent = f"{prefix}embed", config.embedding_scale, lent
        self.sinusoid = config.positions if isinstance(config.positions, Sinusoidal) else None
        learned, types = isinstance(config.positions, Learned), config.n_token_types
        self.token = None if lent else nn.Embedding(config.vocab_size, config.d_model)
        self.position = nn.Embedding(config.context_length, config.d_model) if learned else None
        self.types = nn.Embedding(types, config.d_model) if types else None
        self.norm = Norm(config.norm, config.d_model) if config.embedding_norm else None

    @property
    def words(self) -> Float[Tensor, "V D"]:
        """The token vectors, its own or lent ones."""
        return (self.lent[0] if self.token is None else self.token).weight

    def forward(
        self, ids: Int[Tensor, "B T"], here: Pass, types: Int[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        x = F.embedding(ids, self.words)
        x = here.look(f"{self.name}.token", x if self.scale == 1.0 else x * self.scale)
        if self.position is not None:
            x = x + here.look(f"{self.name}.position", self.position(here.place.positions).expand_as(x))
        if self.sinusoid is not None:
            waves = sinusoid(self.sinusoid, here.place.positions, x.shape[-1], x.dtype)
            x = x + here.look(f"{self.name}.position", waves.expand_as(x))
        if self.types is not None:
            types = torch.zeros_like(ids) if types is None else types
            check_ids(types, self.types.num_embeddings, "token types")
            if types.shape != ids.shape:
                raise ValueError(f"token types must have the ids' shape {tuple(ids.shape)}, got {tuple(types.shape)}")
            x = x + here.look(f"{self.name}.type", self.types(types))
        elif types is not None:
            raise ValueError("this model has no token types: leave them out")
        if self.norm is not None:
            x = normalise(self.norm, here.look(f"{self.name}.sum", x), here, f"{self.name}.sum.scale")
        return F.dropout(x, here.dropout.embedding)


class FeedForward(Sublayer):
    """act(x W_up) W_down, or (x W_up * SiLU(x W_gate)) W_down; no position sees another."""

    def __init__(self, config: Config, layer: int, prefix: str = ""):
        super().__init__(config, f"{prefix}{layer}.ffn")
        self.layer, self.activation = layer, config.activation
        self.gate = Linear(config.d_model, config.d_ff, config.ffn_bias) if config.gated else None
        self.up = Linear(config.d_model, config.d_ff, config.ffn_bias)
        self.down = Linear(config.d_ff, config.d_model, config.ffn_bias)

    def forward(self, x: Float[Tensor, "B T D"], here: Pass) -> Float[Tensor, "B T D"]:
        x = self.read(x, here)
        if self.gate is None:
            neurons = activate(self.activation, here.look(f"{self.name}.up", self.up(x)))
        else:
            gate = here.look(f"{self.name}.gate", self.gate(x))
            neurons = here.look(f"{self.name}.up", self.up(x)) * F.silu(gate)
        neurons = here.look(f"{self.name}.neurons", neurons)
        return here.look(f"{self.name}.update", self.down(neurons))


class Block(nn.Module):
    """The sublayers of one layer, and for PaLM's parallel form the one norm that both read through."""

    def __init__(self, config: Config, layer: int, prefix: str = ""):
        super().__init__()
        self.attention = Attention(config, layer, prefix)
        self.cross = None if config.encoder is None else CrossAttention(config, config.encoder, layer, prefix)
        self.ffn = FeedForward(config, layer, prefix)
        self.norm = Norm(config.norm, config.d_model) if self.ffn.norm is None else None


@dataclass(frozen=True)
class Step:
    """From one state of the stream to the next: the sublayers that read the state and whose updates are added to it.

    `shared` is a norm that all of them read through, `after` one that the sum goes through (post-norm).
    """

    state: str
    parts: tuple[Attention | FeedForward, ...]
    shared: Norm | None = None
    after: Norm | None = None

    def source(self, x: Float[Tensor, "B T D"], here: Pass) -> Float[Tensor, "B T D"]:
        """What the sublayers are given of a state."""
        return x if self.shared is None else normalise(self.shared, x, here, self.state.replace("stream", "norm.scale"))

    def close(self, x: Float[Tensor, "B T D"], updates: list[Tensor], here: Pass) -> Float[Tensor, "B T D"]:
        """The next state: the sum, through the norm after it if there is one."""
        for update in updates:
            x = x + F.dropout(update, here.dropout.update)
        if self.after is None:
            return x
        name = self.parts[0].name
        return normalise(self.after, here.look(f"{name}.sum", x), here, f"{name}.sum.scale")


class Transformer(nn.Module):
    """Token ids to logits: embed, run the stack, unembed. A decoder with an encoder holds that as another one."""

    def __init__(self, config: Config, prefix: str = "", lent: tuple[nn.Embedding, ...] = ()):
        super().__init__()
        self.config = config
        self.prefix = prefix or ("decoder." if config.encoder else "")
        self.embed = Embedding(config, self.prefix, lent)
        shared = (self.embed.token,) if config.shared_embedding and self.embed.token is not None else ()
        self.encoder = None if config.encoder is None else Transformer(config.encoder, "encoder.", shared)
        self.blocks = nn.ModuleList(Block(config, layer, self.prefix) for layer in range(config.n_layers))
        self.final_norm = Norm(config.norm, config.d_model) if config.final_norm else None
        self.head = PredictionHead(config, self.prefix) if isinstance(config.head, MaskedLanguage) else None
        self.unembed = None if config.head is None else Unembedding(config)
        self.pooler = Linear(config.d_model, config.d_model, bias=True) if config.pooler else None
        self.next_sentence = Linear(config.d_model, 2, bias=True) if config.next_sentence else None
        if not prefix:
            initialise(self, config)

    @property
    def steps(self) -> list[Step]:
        """The stack as steps between states."""
        steps, post = [], isinstance(self.config.block, PostNorm)
        for layer, block in enumerate(cast(Iterable[Block], self.blocks)):
            state = f"{self.prefix}{layer}.stream"
            if isinstance(self.config.block, Parallel):
                steps.append(Step(state, (block.attention, block.ffn), shared=block.norm))
                continue
            parts = [(state, block.attention), (f"{state}.cross" if block.cross else f"{state}.mid", block.ffn)]
            if block.cross is not None:
                parts.insert(1, (f"{state}.mid", block.cross))
            steps += [Step(name, (part,), after=part.norm if post else None) for name, part in parts]
        return steps

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        mask: Tensor | None = None,
        looks: Looks | None = None,
        types: Int[Tensor, "B T"] | None = None,
        source: Int[Tensor, "B S"] | None = None,
        source_mask: Tensor | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Logits of every position. `mask` is B x T, 1 where a column holds a token and 0 where it is padding.

        Where a row holds several documents the mask numbers them, as 1 1 2 2 2 0: they see nothing of one another.
        `types` are BERT's token types (0 if not given), `source` the text that an encoder reads.
        """
        memory = None if source is None else self.encode(source, source_mask, looks)
        here = self.begin(ids, mask, looks=looks, memory=memory)
        return self.logits(self.run(self.embed(ids, here, types), here), here)

    def hidden(
        self,
        ids: Int[Tensor, "B T"],
        mask: Tensor | None = None,
        looks: Looks | None = None,
        types: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """The final stream, through the final norm where there is one; for models without an encoder."""
        here = self.begin(ids, mask, looks=looks)
        return self.normed(self.run(self.embed(ids, here, types), here), here)

    def encode(self, source: Int[Tensor, "B S"], mask: Tensor | None = None, looks: Looks | None = None) -> Memory:
        """What the decoder attends to. Raises ValueError if the model has no encoder."""
        if self.encoder is None:
            raise ValueError("this model has no encoder: it takes no source text")
        here = self.encoder.begin(source, mask, looks=looks)
        x = self.encoder.run(self.encoder.embed(source, here), here)
        return Memory(self.encoder.normed(x, here), here.place)

    def begin(
        self,
        ids: Int[Tensor, "B T"],
        mask: Tensor | None = None,
        cache: Cache | None = None,
        looks: Looks | None = None,
        length: int | None = None,
        memory: Memory | None = None,
    ) -> Pass:
        """Check the input and say where it stands. With a `cache` the columns follow those it holds.

        `length` declares the total length for rotary scalings that depend on it. Raises ValueError for an empty
        input, ids outside the vocabulary, more positions than a learned table has, or a decoder without its encoder's
        memory, before any kernel runs.
        """
        check_ids(ids, self.config.vocab_size)
        if (memory is None) != (self.encoder is None):
            raise ValueError("a decoder with an encoder needs a source text (source=), and no other model takes one")
        if memory is not None and memory.stream.shape[0] != ids.shape[0]:
            raise ValueError(f"each text needs a source of its own: got {ids.shape[0]} and {memory.stream.shape[0]}")
        if cache is not None and not self.config.causal:
            raise ValueError("positions of this model see later ones: it cannot be continued through a cache")
        place = place_of((ids.shape[0], ids.shape[1]), mask, ids.device, cache.place if cache else None, length)
        if isinstance(self.config.positions, Learned) and place.end > self.config.context_length:
            raise ValueError(
                f"the input has {place.end} positions, the position table only {self.config.context_length}: shorten it"
            )
        if cache is not None:
            cache.extend(place)
        dropout = self.config.dropout if self.training else Dropout()
        return Pass(place, self.rotation(place), cache, looks, dropout, memory)

    def rotation(self, place: Place) -> tuple[Tensor, Tensor] | None:
        """cos and sin of the columns at hand, where positions are rotary."""
        if not isinstance(self.config.positions, Rotary):
            return None
        return table(self.config.positions, self.config.d_head, place.positions, place.length, self.embed.words.dtype)

    def run(
        self, x: Float[Tensor, "B T D"], here: Pass, first: int = 0, last: int | None = None
    ) -> Float[Tensor, "B T D"]:
        """Take the stream from state `first` to state `last` (counted in steps; None: to the end)."""
        steps = self.steps
        for step in steps[first:last]:
            x = here.look(step.state, x)
            source = step.source(x, here)
            x = step.close(x, [part(source, here) for part in step.parts], here)
        return here.look(f"{self.prefix}{len(self.blocks)}.stream", x) if last in (None, len(steps)) else x

    def normed(self, x: Float[Tensor, "B T D"], here: Pass) -> Float[Tensor, "B T D"]:
        """The final stream as it is read: through the final norm, where there is one."""
        if self.final_norm is None:
            return x
        return here.look(f"{self.prefix}final.normed", normalise(self.final_norm, x, here, f"{self.prefix}final.scale"))

    def logits(self, x: Float[Tensor, "B T D"], here: Pass) -> Float[Tensor, "B T V"]:
        """The final norm, BERT's prediction head if there is one, and the unembedding: E^T (tied) or its own matrix."""
        if self.unembed is None:
            raise ValueError("this model has no head that makes logits: hidden() gives its final stream")
        x = self.normed(x, here)
        logits = self.unembed(x if self.head is None else self.head(x, here), self.embed.words)
        scale = self.config.logit_scale
        return here.look(f"{self.prefix}logits", logits if scale == 1.0 else logits * scale)

    def pooled(self, x: Float[Tensor, "B T D"], here: Pass) -> Float[Tensor, "B D"]:
        """tanh(x_first W + b) of the final stream (BERT's pooler). Raises ValueError if the model has none."""
        if self.pooler is None:
            raise ValueError("this model has no pooler")
        first = first_token(self.normed(x, here), here.place.real)
        return here.look("pooled", torch.tanh(self.pooler(first)))

    def next_sentence_logits(self, x: Float[Tensor, "B T D"], here: Pass) -> Float[Tensor, "B 2"]:
        """Whether the second text follows the first (0) or not (1). Raises ValueError if the model has no such head."""
        if self.next_sentence is None:
            raise ValueError("this model has no next-sentence head")
        return here.look("head.next_sentence", self.next_sentence(self.pooled(x, here)))

    @property
    def W_U(self) -> Float[Tensor, "V D"]:
        """The unembedding's matrix, one row a token."""
        own = None if self.unembed is None else self.unembed.weight
        return self.embed.words if own is None else own


def check_ids(ids: Tensor, size: int, name: str = "ids") -> None:
    """Refuse what no embedding can take, before a kernel meets it."""
    if ids.ndim != 2 or ids.numel() == 0:
        raise ValueError(f"{name} must be batch x positions with at least one of each, got shape {tuple(ids.shape)}")
    if torch.compiler.is_compiling():
        return
    if ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{name} must be whole numbers (int64 or int32), got {ids.dtype}")
    low, high = (int(end) for end in ids.aminmax())
    if low < 0 or high >= size:
        raise ValueError(f"{name} must lie in 0..{size - 1}, got {low if low < 0 else high}")

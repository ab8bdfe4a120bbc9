"""What a transformer is made of, as one frozen record of small ones; nonsense cannot be built."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from .checks import at_least, whole
from .plain import from_plain, to_plain
from .records import (
    Activation,
    Bidirectional,
    BlockForm,
    Causal,
    Dropout,
    FanIn,
    Gelu,
    GeluTanh,
    Head,
    Init,
    LayerNorm,
    Learned,
    Mask,
    MaskedLanguage,
    Norm,
    Parallel,
    Positions,
    PostNorm,
    PreNorm,
    Relu,
    RMSNorm,
    Silu,
    Sinusoidal,
    SwiGLU,
    Unembed,
    Window,
)  # fmt: skip
from .rotary import Rotary

__all__ = [
    "Activation", "Bidirectional", "BlockForm", "Causal", "Config", "Dropout", "FanIn", "Gelu", "GeluTanh",
    "Head", "Init", "LayerNorm", "Learned", "Mask", "MaskedLanguage", "Norm", "Parallel", "Positions",
    "PostNorm", "PreNorm", "RMSNorm", "Relu", "Silu", "Sinusoidal", "SwiGLU", "Unembed", "Window",
]  # fmt: skip


@dataclass(frozen=True)
class Config:
    """The whole shape of a transformer.

    Sizes left at 0 take the usual value: `n_kv_heads` = `n_heads`, `d_head` = `d_model` / `n_heads`,
    `d_ff` = 4 `d_model`. `masks` is a cycle over the layers. `attention_scales` multiplies q.k: one number for all
    layers, or one per layer; empty means 1 / sqrt(d_head). `embedding_scale` multiplies the token embedding,
    `logit_scale` the logits. `embedding_norm` normalises the sum of the embeddings. `head` None: no logits.

    With an `encoder` the config is a decoder's: each of its blocks also attends to the encoder's final stream, and
    `shared_embedding` lets the encoder use the decoder's token embedding.

    Raises ValueError, naming what was expected and what came, when the parts do not fit together.
    """

    vocab_size: int
    context_length: int
    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int = 0
    d_head: int = 0
    d_ff: int = 0
    positions: Positions = Learned()
    norm: Norm = LayerNorm()
    activation: Activation = GeluTanh()
    block: BlockForm = PreNorm()
    masks: tuple[Mask, ...] = (Causal(),)
    qkv_bias: bool = True
    out_bias: bool = True
    ffn_bias: bool = True
    tied: bool = True
    attention_scales: tuple[float, ...] = ()
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    n_token_types: int = 0
    embedding_norm: bool = False
    head: Head | None = Unembed()
    pooler: bool = False
    next_sentence: bool = False
    encoder: "Config | None" = None
    shared_embedding: bool = True
    dropout: Dropout = Dropout()
    init: Init | FanIn = Init()

    def __post_init__(self) -> None:
        self._fill_sizes()
        for name in ("vocab_size", "context_length", "n_layers", "d_model", "n_heads", "n_kv_heads", "d_head", "d_ff"):
            whole(name, vars(self)[name])
        at_least("n_token_types", self.n_token_types, 0)
        self._check_records()
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads must be a multiple of n_kv_heads, got {self.n_heads} and {self.n_kv_heads}")
        if isinstance(self.positions, Rotary):
            self.positions.check_width(self.d_head)
        if isinstance(self.positions, Sinusoidal) and (self.d_model % 2 or self.d_model < 4):
            raise ValueError(f"sinusoids come in pairs: d_model must be even and at least 4, got {self.d_model}")
        if not self.masks:
            raise ValueError("masks needs at least one mask, got none")
        if len(self.attention_scales) not in (0, 1, self.n_layers):
            raise ValueError(
                f"attention_scales must hold one number, or one per layer ({self.n_layers}), "
                f"got {len(self.attention_scales)}"
            )
        self._check_heads()
        self._check_encoder()

    def _check_records(self) -> None:
        """Every record is one of its kind, every flag a flag, every scale a number that scales."""
        kinds = {"positions": Positions, "norm": Norm, "activation": Activation, "block": BlockForm, "dropout": Dropout}
        kinds |= {"init": Init | FanIn, "head": Head | None, "encoder": Config | None}
        flags = ("qkv_bias", "out_bias", "ffn_bias", "tied", "embedding_norm", "pooler", "next_sentence")
        kinds |= dict.fromkeys((*flags, "shared_embedding"), bool)
        for name, kind in kinds.items():
            if not isinstance(vars(self)[name], kind):
                told = " or ".join(each.__name__ for each in get_args(kind) or (kind,))
                raise ValueError(f"{name} must be {told}, got {vars(self)[name]!r}")
        if not isinstance(self.masks, tuple) or not all(isinstance(mask, Mask) for mask in self.masks):
            raise ValueError(f"masks must be a tuple of Causal, Window and Bidirectional, got {self.masks!r}")
        if not isinstance(self.attention_scales, tuple):
            raise ValueError(f"attention_scales must be a tuple of numbers, got {self.attention_scales!r}")
        scales = (self.embedding_scale, self.logit_scale, *self.attention_scales)
        if not all(isinstance(scale, int | float) and math.isfinite(scale) and scale != 0 for scale in scales):
            raise ValueError(f"scales must be finite numbers other than 0, got {scales}")

    def _check_heads(self) -> None:
        if self.next_sentence and not self.pooler:
            raise ValueError("next_sentence reads the pooler's output: it needs pooler=True")
        if isinstance(self.head, MaskedLanguage) and self.gated:
            raise ValueError("a masked-language head has a plain activation, got the gated SwiGLU")
        if self.head is None and not self.tied:
            raise ValueError("without a head there is no unembedding that could be untied: head=None needs tied=True")

    def _check_encoder(self) -> None:
        encoder = self.encoder
        if encoder is None:
            return
        if isinstance(self.block, Parallel):
            raise ValueError("cross-attention stands between two sublayers: with an encoder, block cannot be Parallel")
        if any(isinstance(mask, Bidirectional) for mask in self.masks):
            raise ValueError("a decoder's masks must be causal or windows, got Bidirectional")
        if encoder.encoder is not None or encoder.head is not None or encoder.pooler:
            raise ValueError("an encoder needs head=None and no pooler or encoder of its own")
        ours, theirs = (self.vocab_size, self.d_model), (encoder.vocab_size, encoder.d_model)
        if self.shared_embedding and ours != theirs:
            raise ValueError(f"a shared embedding needs equal vocab_size and d_model, got {ours} and {theirs}")

    def _fill_sizes(self) -> None:
        if not self.n_kv_heads:
            object.__setattr__(self, "n_kv_heads", self.n_heads)
        if not self.d_head:
            for name in ("d_model", "n_heads"):
                whole(name, vars(self)[name])
            if self.d_model % self.n_heads:
                raise ValueError(
                    f"d_model must be a multiple of n_heads when d_head is not given, "
                    f"got d_model={self.d_model}, n_heads={self.n_heads}"
                )
            object.__setattr__(self, "d_head", self.d_model // max(self.n_heads, 1))
        if not self.d_ff:
            object.__setattr__(self, "d_ff", 4 * self.d_model)

    @property
    def gated(self) -> bool:
        """Whether the feed-forward layer has a gate beside its up-projection."""
        return isinstance(self.activation, SwiGLU)

    @property
    def final_norm(self) -> bool:
        """Whether one more norm stands after the stack."""
        return self.block.final_norm if isinstance(self.block, PostNorm) else True

    @property
    def causal(self) -> bool:
        """Whether no position sees a later one in any layer, so that text can be continued token by token."""
        return not any(isinstance(mask, Bidirectional) for mask in self.masks)

    def mask(self, layer: int) -> Mask:
        """The mask of a layer, from the cycle."""
        return self.masks[layer % len(self.masks)]

    def attention_scale(self, layer: int) -> float:
        """What q.k is multiplied by in a layer; 1 / sqrt(d_head) unless the config says otherwise."""
        if not self.attention_scales:
            return self.d_head**-0.5
        return self.attention_scales[layer % len(self.attention_scales)]

    def to_dict(self) -> dict[str, Any]:
        """The config as plain data; each record becomes {"kind": its name, ...its numbers}."""
        return {name: to_plain(value) for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Config":
        """The inverse of `to_dict`; fields left out take their defaults.

        Raises ValueError for a field or a kind that there is not, or a value of another type.
        """
        return from_plain(cls, data, "config")

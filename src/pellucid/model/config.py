"""What a transformer is made of, as frozen records. A family is a `Config`; nonsense cannot be built."""

from dataclasses import dataclass, is_dataclass
from typing import Any

from .checks import positive, whole
from .rotary import Rotary


@dataclass(frozen=True)
class Learned:
    """A learned vector for each of the first `context_length` positions, added to the token embedding (GPT-2)."""


@dataclass(frozen=True)
class LayerNorm:
    """gamma * (x - mean) / sqrt(var + eps) + beta over the features, biased variance (Ba et al. 2016)."""

    eps: float = 1e-5
    bias: bool = True

    def __post_init__(self) -> None:
        positive("LayerNorm.eps", self.eps)


@dataclass(frozen=True)
class RMSNorm:
    """gamma * x / sqrt(mean(x^2) + eps): no mean, no shift (Zhang & Sennrich 2019; LLaMA)."""

    eps: float = 1e-5

    def __post_init__(self) -> None:
        positive("RMSNorm.eps", self.eps)


@dataclass(frozen=True)
class Gelu:
    """z * Phi(z), exact (Hendrycks & Gimpel 2016)."""


@dataclass(frozen=True)
class GeluTanh:
    """The tanh form of GELU, GPT-2's; at most 4.73e-4 away from the exact one."""


@dataclass(frozen=True)
class Relu:
    """max(z, 0)."""


@dataclass(frozen=True)
class SwiGLU:
    """Gated: (x W_up) * SiLU(x W_gate) (Shazeer 2020)."""


@dataclass(frozen=True)
class PreNorm:
    """x' = x + MHA(norm(x)); x = x' + FFN(norm(x')): only the copy that is read is normalised."""


@dataclass(frozen=True)
class Causal:
    """A position sees itself and every earlier one."""


@dataclass(frozen=True)
class Dropout:
    """Shares of values dropped while training: after the embedding, in the pattern, on each update."""

    embedding: float = 0.0
    attention: float = 0.0
    update: float = 0.0

    def __post_init__(self) -> None:
        for name, rate in vars(self).items():
            if not 0.0 <= rate < 1.0:
                raise ValueError(f"Dropout.{name} must lie in [0, 1), got {rate}")


@dataclass(frozen=True)
class Init:
    """GPT-2's start: every matrix N(0, std), the two that write to the stream N(0, std / sqrt(2 L)), biases 0."""

    std: float = 0.02

    def __post_init__(self) -> None:
        positive("Init.std", self.std)


Positions = Learned | Rotary
Norm = LayerNorm | RMSNorm
Activation = Gelu | GeluTanh | Relu | SwiGLU
BlockForm = PreNorm
Mask = Causal


@dataclass(frozen=True)
class Config:
    """The whole shape of a transformer.

    Sizes left at 0 take the usual value: `n_kv_heads` = `n_heads`, `d_head` = `d_model` / `n_heads`,
    `d_ff` = 4 `d_model`. `masks` is a cycle over the layers. `attention_scales` multiplies q.k: one number for all
    layers, or one per layer; empty means 1 / sqrt(d_head). `embedding_scale` multiplies the token embedding,
    `logit_scale` the logits.

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
    dropout: Dropout = Dropout()
    init: Init = Init()

    def __post_init__(self) -> None:
        self._fill_sizes()
        for name in ("vocab_size", "context_length", "n_layers", "d_model", "n_heads", "n_kv_heads", "d_head", "d_ff"):
            whole(name, vars(self)[name])
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads must be a multiple of n_kv_heads (each key-value head serves as many query heads), "
                f"got n_heads={self.n_heads}, n_kv_heads={self.n_kv_heads}"
            )
        if isinstance(self.positions, Rotary):
            self.positions.check_width(self.d_head)
        if not self.masks:
            raise ValueError("masks needs at least one mask, got none")
        if len(self.attention_scales) not in (0, 1, self.n_layers):
            raise ValueError(
                f"attention_scales must hold one number, or one per layer ({self.n_layers}), "
                f"got {len(self.attention_scales)}"
            )

    def _fill_sizes(self) -> None:
        if not self.n_kv_heads:
            object.__setattr__(self, "n_kv_heads", self.n_heads)
        if not self.d_head:
            if isinstance(self.n_heads, int) and self.n_heads > 0 and self.d_model % self.n_heads:
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
        return {name: _plain(value) for name, value in vars(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if not is_dataclass(value):
        return value
    return {"kind": type(value).__name__, **{name: _plain(part) for name, part in vars(value).items()}}

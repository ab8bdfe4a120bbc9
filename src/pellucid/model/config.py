"""What a transformer is made of, as frozen records. A family is a `Config`; nonsense cannot be built."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .checks import at_least, one_of, positive, whole
from .plain import from_plain, to_plain
from .rotary import Rotary


@dataclass(frozen=True)
class Learned:
    """A learned vector for each of the first `context_length` positions, added to the token embedding (GPT-2)."""


@dataclass(frozen=True)
class Sinusoidal:
    """Fixed sines and cosines of each position, added to the token embedding (Vaswani et al. 2017).

    Frequencies fall from 1 to 1/10000 over the features. `layout` says where the sines and cosines stand:
    "interleaved" (the paper: sine, cosine, sine, ...), "halves" (Marian: all sines, then all cosines, the paper's
    frequencies 10000^(-2i/d)), or "timescales" (Tensor2Tensor: halves, with 10000^(-i/(d/2 - 1))).
    """

    layout: Literal["interleaved", "halves", "timescales"] = "interleaved"

    def __post_init__(self) -> None:
        one_of("Sinusoidal.layout", self.layout, ("interleaved", "halves", "timescales"))


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
class PostNorm:
    """x = norm(x + F(x)) for each sublayer (the 2017 model, BERT). `final_norm`: one more norm after the stack."""

    final_norm: bool = False


@dataclass(frozen=True)
class Parallel:
    """x + MHA(norm(x)) + FFN(norm(x)), both reading the same state, through one norm (PaLM) or `norms` = 2 (Pythia)."""

    norms: int = 2

    def __post_init__(self) -> None:
        one_of("Parallel.norms", self.norms, (1, 2))


@dataclass(frozen=True)
class Causal:
    """A position sees itself and every earlier one."""


@dataclass(frozen=True)
class Window:
    """A position sees itself and the `width` - 1 before it (Mistral's sliding window, GPT-3's local bands)."""

    width: int

    def __post_init__(self) -> None:
        whole("Window.width", self.width)


@dataclass(frozen=True)
class Bidirectional:
    """Every position sees every other one (BERT, encoders)."""


@dataclass(frozen=True)
class Unembed:
    """Logits of the final stream: times E^T (tied) or a matrix of its own, plus a `bias` for each token."""

    bias: bool = False


@dataclass(frozen=True)
class MaskedLanguage:
    """BERT's prediction head: a dense layer, the activation and a norm before the unembedding, which has a bias."""


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


@dataclass(frozen=True)
class FanIn:
    """PaLM's start (Chowdhery et al. 2022): matrices N(0, 1 / d_in), token embeddings N(0, 1), biases 0."""


Positions = Learned | Sinusoidal | Rotary
Norm = LayerNorm | RMSNorm
Activation = Gelu | GeluTanh | Relu | SwiGLU
BlockForm = PreNorm | PostNorm | Parallel
Mask = Causal | Window | Bidirectional
Head = Unembed | MaskedLanguage


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

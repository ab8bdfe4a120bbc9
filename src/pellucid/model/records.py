"""The small frozen records that a `Config` is made of."""

from dataclasses import dataclass
from typing import Literal

from .checks import one_of, positive, whole
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
class Silu:
    """z * sigmoid(z), also called swish, without a gate (Marian's models)."""


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
Activation = Gelu | GeluTanh | Relu | Silu | SwiGLU
BlockForm = PreNorm | PostNorm | Parallel
Mask = Causal | Window | Bidirectional
Head = Unembed | MaskedLanguage

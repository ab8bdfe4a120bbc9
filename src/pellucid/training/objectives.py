"""What a model learns. The loss is one, the cross-entropy of a batch's targets; the readers say what those are."""

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from ..model.checks import one_of
from ..model.config import Config
from ..model.flow import Pass
from ..model.transformer import Transformer
from .batch import NO_TARGET, Batch
from .cross_entropy import Unembedded, cross_entropy

NAMES = ("next_token", "masked", "translation", "instruction")


@dataclass(frozen=True)
class Targets:
    """(transformer, batch) -> (the sum of the targets' cross-entropies in nats, how many targets there are).

    Logits are made where there is a target, and nowhere else. `smoothing` of the labels holds while the transformer
    trains; what it is validated with is the plain loss.
    """

    smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.smoothing < 1.0:
            raise ValueError(f"smoothing must lie in [0, 1), got {self.smoothing}")

    def __call__(self, transformer: Transformer, batch: Batch) -> tuple[Float[Tensor, ""], int]:
        wanted = batch.targets != NO_TARGET
        x = final(transformer, *stream(transformer, batch), wanted)
        smoothing = self.smoothing if transformer.training else 0.0
        return cross_entropy(x, unembedded(transformer), batch.targets[wanted], smoothing), len(x)


next_token = Targets()


def stream(transformer: Transformer, batch: Batch) -> tuple[Float[Tensor, "B T D"], Pass]:
    """The stream after the last block, and the pass that made it."""
    memory = None if batch.source is None else transformer.encode(batch.source, batch.source_mask)
    here = transformer.begin(batch.ids, batch.mask, memory=memory)
    return transformer.run(transformer.embed(batch.ids, here, batch.types), here), here


def final(
    transformer: Transformer, x: Float[Tensor, "B T D"], here: Pass, wanted: Bool[Tensor, "B T"]
) -> Float[Tensor, "N D"]:
    """What is unembedded at the positions that are wanted: through the final norm, and BERT's head where there is one.

    Both read each position by itself.
    """
    x = transformer.normed(x[wanted][None], here)
    return (x if transformer.head is None else transformer.head(x, here))[0]


def unembedded(transformer: Transformer) -> Unembedded:
    """How logits are made of that. Raises ValueError for a model without a head that makes any."""
    if transformer.unembed is None:
        raise ValueError("this model has no head that makes logits: there is nothing to train it with")
    return Unembedded(transformer.W_U, transformer.unembed.bias, transformer.config.logit_scale)


def check_model(name: str, config: Config) -> None:
    """Raise ValueError where a model cannot learn what is asked for."""
    one_of("objective", name, NAMES)
    if name == "translation":
        if config.encoder is None:
            raise ValueError("objective translation needs a model with an encoder, and this one has none")
        return
    if config.encoder is not None:
        raise ValueError(f"objective {name} needs a model without an encoder; one with an encoder learns translation")
    if name == "masked" and config.causal:
        raise ValueError(
            "objective masked fills gaps from both sides, and this model sees what is before a position only: "
            'give it model.masks = [{kind = "Bidirectional"}], or take next_token'
        )
    if name != "masked" and not config.causal:
        raise ValueError(f"objective {name} predicts what comes next, and this model sees it: it learns masked")

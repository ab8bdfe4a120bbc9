"""What heads do as numbers by name, for whoever asks the same again and again: while a model learns.

The text is fixed: rows of different random tokens, repeated once. Heads are named layer.head, and beside theirs stands
the score by "chance": that of uniform attention.
"""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from ..model.config import Config
from ..model.transformer import Transformer
from ..text import Tokenizer
from .head_scores import measure
from .head_targets import Target, induction, previous_token
from .head_texts import pool_of, random_rows, repeated
from .in_context import induction_loss, token_losses
from .trace import Trace, trace

LENGTH = 25  # random tokens that are repeated, as in Olsson et al. 2022


@dataclass(frozen=True, eq=False)
class Repeated:
    """Rows of `period` different random tokens and the same again."""

    ids: Int[Tensor, "B T"]
    period: int

    def induction(self, transformer: Transformer) -> dict[str, float]:
        """The "loss" on the second copy from its second token on, in nats a token, and each head's induction score."""
        ids = self.ids.to(transformer.W_U.device)
        loss = induction_loss(token_losses(transformer, ids), self.period, start=0)
        return {"loss": loss, **self.score(transformer, induction)}

    def previous(self, transformer: Transformer) -> dict[str, float]:
        """Each head's previous-token score."""
        return self.score(transformer, previous_token)

    def score(self, transformer: Transformer, target: Callable[[Trace], Target]) -> dict[str, float]:
        """Each head's attention to a target's keys, and what it is where there is nothing to find ("chance")."""
        found = trace(transformer, self.ids.to(transformer.W_U.device))
        (taken,) = measure(found, [target(found)])
        scores = {f"{layer}.{head}": float(v) for layer, row in enumerate(taken.score) for head, v in enumerate(row)}
        return {**scores, "chance": float(taken.null[0, 0])}


def repeated_tokens(config: Config, tokenizer: Tokenizer | None = None, rows: int = 8, seed: int = 0) -> Repeated:
    """The text for models of this shape: 25 random tokens twice, or as many as vocabulary and context have room for.

    Raises ValueError for an encoder-decoder, for models whose positions see later ones, and where nothing can be
    repeated.
    """
    if config.encoder is not None or not config.causal or config.head is None:
        raise ValueError("induction and previous-token heads are watched of decoders: models that continue a text")
    pool = pool_of(config.vocab_size, tokenizer, None)
    period = min(LENGTH, len(pool), config.context_length // 2)
    if period < 2:
        raise ValueError(f"nothing can be repeated with {len(pool)} tokens in {config.context_length} positions")
    return Repeated(repeated(random_rows(pool, period, rows, seed), 2, None), period)

"""How well a model predicts a text: loss, perplexity, bits for each byte and for each character."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..model.config import Config
from ..model.transformer import Transformer
from ..text import Tokenizer
from .batch import NO_TARGET, Batch
from .objectives import next_token

Progress = Callable[[int], Any]  # told of each so many characters of text that are done


@dataclass(frozen=True)
class Evaluation:
    """The sum of the losses of `tokens` scored tokens, in nats, and the bytes (UTF-8) and characters of their text.

    Numbers of one tokenizer can be compared by the loss, those of several by bits for each byte or character only.
    """

    nats: float
    tokens: int
    bytes: int
    characters: int
    length: int
    stride: int

    @property
    def loss(self) -> float:
        """Nats for each token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """e to the loss; infinite where that is more than a float holds."""
        return math.exp(self.loss) if self.loss < 709.0 else math.inf

    @property
    def bits_per_byte(self) -> float:
        """Bits for each byte of UTF-8."""
        return self.nats / math.log(2) / self.bytes

    @property
    def bits_per_character(self) -> float:
        """Bits for each character."""
        return self.nats / math.log(2) / self.characters

    def to_json(self) -> dict[str, Any]:
        """All numbers by their names."""
        means = {name: getattr(self, name) for name in ("loss", "perplexity", "bits_per_byte", "bits_per_character")}
        return {**means, **asdict(self)}

    def __str__(self) -> str:
        return (
            f"loss                {self.loss:.4f} nats per token\n"
            f"perplexity          {self.perplexity:.4f}\n"
            f"bits per byte       {self.bits_per_byte:.4f}\n"
            f"bits per character  {self.bits_per_character:.4f}\n"
            f"{self.tokens:,} tokens scored ({self.bytes:,} bytes), in windows of {self.length}, "
            f"each token with {self.length - self.stride} before it or more"
        )


@torch.no_grad()
def evaluate(
    transformer: Transformer,
    tokenizer: Tokenizer,
    texts: str | Iterable[str],
    length: int = 0,
    stride: int = 0,
    progress: Progress = lambda done: None,
) -> Evaluation:
    """Score each token of a text, or of several by themselves, once.

    A window of `length` tokens (0: the context, or 1,024 if that is less) is moved on by `stride` (0: half of it); of
    each window the tokens that the one before had not are scored, so that each has `length - stride` tokens before it,
    or all there are. The first token of a text has nothing before it, and is not scored; where the tokenizer puts BOS
    first that is the first, and belongs to no text.

    Raises ValueError for a model that does not predict next tokens, numbers that do not fit together, or texts with
    less than two tokens.
    """
    length, stride = sizes(transformer.config, length, stride)
    nats, scored, bytes, characters = 0.0, 0, 0, 0
    was_training, device = transformer.training, transformer.W_U.device
    transformer.eval()
    try:
        for text in [texts] if isinstance(texts, str) else texts:
            ids = tokenizer.encode(text)
            if len(ids) < 2:
                continue
            first = _first(tokenizer, ids[0], text)
            bytes += len(text.encode("utf-8", "replace")) - first[0]
            characters += len(text) - first[1]
            for batch in windows(ids, length, stride):
                loss, tokens = next_token(transformer, batch.to(device))
                nats, scored = nats + loss.item(), scored + tokens
                progress(len(text) * tokens // len(ids))
    finally:
        transformer.train(was_training)
    if not (scored and bytes and characters):
        raise ValueError("a text of at least two tokens is needed, one to read and one to predict")
    return Evaluation(nats, scored, bytes, characters, length, stride)


def _first(tokenizer: Tokenizer, id: int, text: str) -> tuple[int, int]:
    """How many bytes and characters of a text its first token is, which nothing is before."""
    if id in tokenizer.control_ids:
        return 0, 0
    written = tokenizer.decode([id])
    if text.startswith(written):
        return len(written.encode()), len(written)
    return len(tokenizer.bytes_of(id)), 0  # a part of a character


def sizes(config: Config, length: int = 0, stride: int = 0) -> tuple[int, int]:
    """The length of a window and how far it is moved on. Raises ValueError, also for a model that cannot be scored."""
    if config.encoder is not None or not config.causal or config.head is None:
        raise ValueError("a text is scored by a model that predicts each next token; this one does not")
    context = config.context_length
    length = length or min(context, 1024)
    stride = stride or max(1, length // 2)
    if not 2 <= length <= context:
        raise ValueError(f"length must be from 2 to the context of {context} tokens, got {length}")
    if not 1 <= stride < length:
        raise ValueError(f"stride must be from 1 to {length - 1}, one less than length, got {stride}")
    return length, stride


def windows(ids: list[int], length: int, stride: int) -> Iterator[Batch]:
    """The windows over a text's ids, one a batch: the targets of each are the ids that the one before did not hold."""
    tokens, scored = torch.tensor(ids), 1
    for start in range(0, len(ids), stride):
        window = tokens[start : start + length]
        targets = window[1:].clone()
        targets[: max(0, scored - start - 1)] = NO_TARGET
        scored = start + len(window)
        yield Batch(window[None, :-1], targets[None])
        if scored == len(ids):
            return

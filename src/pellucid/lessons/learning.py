"""Training: a model that begins with random weights, and learns to write one text by heart in seconds."""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from ..generation import Sampling, generate
from ..model.config import Config
from ..model.transformer import Transformer
from ..training.batch import Batch
from ..training.loop import train
from ..training.objectives import next_token
from ..training.optimizers import optimizer_of
from ..training.schedules import Constant
from ..views import Table
from .drawing import Curves
from .found import Found

VERSE = (
    "the stream runs down from layer to layer, and every layer adds a word; "
    "what once was written is not forgotten, and at the end the sum is heard. "
)
LENGTH, ROWS = 32, 16
_SHOWN = 12  # lines of the table


def learning(steps: int = 150, seed: int = 0) -> Found:
    """Cross-entropy falls from that of guessing, ln V, by gradient descent; then the model goes on from a beginning."""
    characters = sorted(set(VERSE))
    losses, transformer = _trained(len(characters), steps, seed)
    every = max(1, math.ceil(steps / _SHOWN))
    shown = sorted({*range(0, steps, every), steps - 1})
    rows = tuple((step, losses[step], math.exp(losses[step])) for step in shown)
    note = f"ln {len(characters)} = {math.log(len(characters)):.4f} is the loss of guessing evenly."
    curve = Table("loss on a verse, character by character", ("step", "loss (nats)", "as if among"), rows, note)
    start = VERSE[:12]
    ids = [characters.index(char) for char in start]
    sampling = Sampling(temperature=0.0, max_new_tokens=LENGTH - len(ids))
    made = generate(transformer, None, [ids], sampling)[0].ids
    said = ((start, "".join(characters[i] for i in made), VERSE[len(start) : LENGTH]),)
    written = Table("what it then writes", ("given", "written", "the verse"), said)
    series = (("loss", tuple(losses)),)
    return Found((curve, written), Curves("loss", tuple(map(float, range(steps))), series, ("step", "nats")))


def _trained(vocab: int, steps: int, seed: int) -> tuple[list[float], Transformer]:
    """The loss of each step, before it is taken, and the model after the last."""
    config = Config(vocab_size=vocab, context_length=LENGTH, n_layers=2, d_model=32, n_heads=4)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        transformer = Transformer(config)
        batches, losses = _batches(steps, seed), []
        for record in train(transformer, batches, next_token, optimizer_of(transformer), Constant(1e-2, warmup=10)):
            assert record.loss is not None, "every row has targets"
            losses.append(record.loss)
    return losses, transformer.eval()


def _batches(steps: int, seed: int) -> Iterator[Batch]:
    """Rows that begin at random places of the verse, which is repeated without end."""
    text, draws = _ids(), torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(0, len(text), (ROWS, 1), generator=draws)
        at = (starts + torch.arange(LENGTH + 1)) % len(text)
        yield Batch(text[at][:, :-1], text[at][:, 1:])


def _ids() -> Int[Tensor, "T"]:
    characters = sorted(set(VERSE))
    return torch.tensor([characters.index(char) for char in VERSE])

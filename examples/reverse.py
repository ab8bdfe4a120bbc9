"""The 2017 encoder-decoder learns to reverse sequences, and is tried on sequences that it has not seen.

    python examples/reverse.py [--steps 2000] [--seed 0]

Everything is the paper's (Vaswani et al. 2017), made small: post-norm blocks, interleaved sinusoids, ReLU, one
embedding shared by encoder, decoder and softmax, label smoothing 0.1, Adam(0.9, 0.98, 1e-9), its warm-up schedule.
"""

import argparse
import random
import time

import torch
import torch.nn.functional as F

from pellucid.generation import Decoding, Sampling
from pellucid.model.config import Bidirectional, Config, Dropout, Init, LayerNorm, PostNorm, Relu, Sinusoidal
from pellucid.model.transformer import Transformer

START, END, LETTERS, LONGEST = 0, 1, 26, 12
SHAPE = Config(
    vocab_size=2 + LETTERS,
    context_length=LONGEST + 2,
    n_layers=2,
    d_model=64,
    n_heads=4,
    d_ff=256,
    positions=Sinusoidal("interleaved"),
    norm=LayerNorm(),
    activation=Relu(),
    block=PostNorm(),
    embedding_scale=8.0,  # sqrt(d_model)
    dropout=Dropout(),
    init=Init(0.06),
)
ENCODER = {"masks": (Bidirectional(),), "head": None}


def model(seed: int) -> Transformer:
    torch.manual_seed(seed)
    fields = vars(SHAPE)
    return Transformer(Config(**(fields | {"encoder": Config(**(fields | ENCODER))})))


def sequences(count: int, draw: random.Random) -> list[list[int]]:
    """Random words of 1 to LONGEST letters."""
    return [[draw.randrange(2, 2 + LETTERS) for _ in range(draw.randint(1, LONGEST))] for _ in range(count)]


def padded(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, rows))
    ids = torch.tensor([row + [END] * (longest - len(row)) for row in rows])
    return ids, torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])


def loss_of(transformer: Transformer, words: list[list[int]]) -> torch.Tensor:
    """Cross-entropy of the reversed word and the end after it, each target smoothed by 0.1."""
    source, source_mask = padded(words)
    answers, mask = padded([[START, *reversed(word), END] for word in words])
    logits = transformer(answers[:, :-1], mask[:, 1:], source=source, source_mask=source_mask)
    losses = F.cross_entropy(logits.transpose(1, 2), answers[:, 1:], reduction="none", label_smoothing=0.1)
    return (losses * mask[:, 1:]).sum() / mask[:, 1:].sum()


def train(transformer: Transformer, steps: int, draw: random.Random, held_out: set[tuple[int, ...]]) -> None:
    optimizer = torch.optim.Adam(transformer.parameters(), betas=(0.9, 0.98), eps=1e-9)
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = SHAPE.d_model**-0.5 * min(step**-0.5, step * 400**-1.5)
        words = [word for word in sequences(64, draw) if tuple(word) not in held_out]
        loss = loss_of(transformer.train(), words)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 500 == 0:
            print(f"step {step}, loss {loss.item():.3f}", flush=True)


@torch.no_grad()
def reversed_share(transformer: Transformer, words: list[list[int]]) -> float:
    """How many words come out exactly reversed, decoded greedily."""
    source, mask = padded(words)
    memory = transformer.eval().encode(source, mask)
    sampling = Sampling(max_new_tokens=LONGEST + 1, stop_ids=(END,))
    made: list[list[int]] = [[] for _ in words]
    for step in Decoding(transformer, [[START]] * len(words), sampling, memory=memory):
        for token in step.tokens:
            made[token.row].append(token.id)
    return sum(out == [*reversed(word), END] for out, word in zip(made, words, strict=True)) / len(words)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=2000)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    torch.set_num_threads(1)  # the matrices are so small that more threads only wait for one another
    draw, transformer = random.Random(given.seed), model(given.seed)
    unseen = [word for word in sequences(600, draw) if len(word) >= 4][:400]
    start = time.perf_counter()
    train(transformer, given.steps, draw, {tuple(word) for word in unseen})
    minutes = (time.perf_counter() - start) / 60
    share = reversed_share(transformer, unseen)
    exact = f"{share:.1%} of {len(unseen)} unseen words reversed exactly"
    print(f"{exact}, after {given.steps} steps in {minutes:.1f} minutes")


if __name__ == "__main__":
    main()

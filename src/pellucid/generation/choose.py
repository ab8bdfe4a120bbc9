"""From logits to the next tokens of a batch."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from .sampling import Sampling
from .warp import draw, forbid, frequency, min_p, presence, repetition, temperature, top_k, top_p


def row_seeds(sampling: Sampling, rows: int) -> tuple[int, ...]:
    """One seed per row: seed + row, the given ones, or fresh ones from torch's global generator."""
    seed = sampling.seed
    if isinstance(seed, tuple):
        if len(seed) != rows:
            raise ValueError(f"seed must be one number, or one per prompt ({rows}), got {len(seed)}")
        return seed
    if seed is not None:
        return tuple(seed + row for row in range(rows))
    # Greedy choice needs no random numbers, and must not move the caller's generator.
    return tuple(torch.randint(2**62, (rows,)).tolist()) if sampling.temperature else (0,) * rows


class Chooser:
    """Chooses the next token of every row, and remembers what penalties and random numbers need.

    All rows have generated equally many tokens; rows that have ended are left out of later calls. `like` is any tensor
    with a row per token of the vocabulary, on the device of the logits.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompts: Sequence[Sequence[int]],
        like: Float[Tensor, "V ..."],
        forbidden: Sequence[int],
    ):
        self.sampling, self.made, self.rows = sampling, 0, len(prompts)
        V, device = like.shape[0], like.device
        stops = sampling.stop_ids
        forbidden = [*forbidden, *sampling.forbidden_ids]
        bias = tuple(dict(sampling.logit_bias).items())
        for name, ids in (
            ("stop_ids", stops),
            ("logit_bias", [token for token, _ in bias]),
            ("forbidden ids", forbidden),
        ):
            _check(name, ids, V)
        if len({*forbidden, *(stops if sampling.min_new_tokens else ())}) >= V:
            raise ValueError("every id of the vocabulary is forbidden: nothing can be generated")
        self.forbidden = torch.tensor(forbidden, dtype=torch.long, device=device)
        self.stops = torch.tensor(stops, dtype=torch.long, device=device)
        self.bias_ids = torch.tensor([token for token, _ in bias], dtype=torch.long, device=device)
        self.bias = torch.tensor([value for _, value in bias], dtype=torch.float64)
        self.seen = self.counts = None
        if sampling.repetition_penalty != 1.0:
            self.seen = torch.zeros((self.rows, V), dtype=torch.bool, device=device)
            for row, prompt in enumerate(prompts):
                self.seen[row, list(prompt)] = True
        if sampling.presence_penalty or sampling.frequency_penalty:
            self.counts = torch.zeros((self.rows, V), device=device)
        seeds = row_seeds(sampling, self.rows)
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, logits: Float[Tensor, "b V"], rows: Sequence[int]) -> tuple[list[int], list[float]]:
        """The next token of each of `rows`, and its log-softmax in the raw logits, in at least fp32."""
        raw = logits.to(torch.promote_types(logits.dtype, torch.float32))
        scores = self.penalise(raw, rows)
        if self.sampling.temperature == 0:
            ids = scores.argmax(-1)
        else:
            uniform = [[torch.rand((), generator=self.generators[row], dtype=torch.float64).item()] for row in rows]
            ids = draw(self.narrow(scores), torch.tensor(uniform, dtype=torch.float64))[:, 0]
            # Only logits that are not numbers lead past the end; they are named below.
            ids = ids.clamp(max=raw.shape[-1] - 1)
        logprobs = (raw.gather(-1, ids[:, None])[:, 0] - raw.logsumexp(-1)).tolist()
        for row, logprob in zip(rows, logprobs, strict=True):
            if not math.isfinite(logprob):
                raise ValueError(f"the logits of prompt {row} are not finite numbers: run the model in a wider dtype")
        self.remember(ids, rows)
        return ids.tolist(), logprobs

    def penalise(self, logits: Float[Tensor, "b V"], rows: Sequence[int]) -> Float[Tensor, "b V"]:
        """What is forbidden, the three penalties, and the bias."""
        sampling = self.sampling
        if len(self.forbidden):
            logits = forbid(logits, self.forbidden)
        if self.made < sampling.min_new_tokens:
            logits = forbid(logits, self.stops)
        if self.seen is not None:
            logits = repetition(logits, self.seen[self._of(rows)], sampling.repetition_penalty)
        if self.counts is not None:
            counts = self.counts[self._of(rows)]
            logits = presence(logits, counts, sampling.presence_penalty) if sampling.presence_penalty else logits
            logits = frequency(logits, counts, sampling.frequency_penalty) if sampling.frequency_penalty else logits
        if len(self.bias_ids):
            logits = logits.index_add(-1, self.bias_ids, self.bias.to(logits).expand(len(logits), -1))
        return logits

    def narrow(self, logits: Float[Tensor, "b V"]) -> Float[Tensor, "b V"]:
        """Temperature, then fewer and fewer tokens."""
        sampling = self.sampling
        logits = temperature(logits, sampling.temperature)
        if sampling.top_k:
            logits = top_k(logits, sampling.top_k)
        if sampling.top_p < 1.0:
            logits = top_p(logits, sampling.top_p)
        if sampling.min_p:
            logits = min_p(logits, sampling.min_p)
        return logits

    def remember(self, ids: Tensor, rows: Sequence[int]) -> None:
        """Note the chosen tokens."""
        self.made += 1
        at = (torch.tensor(rows, device=ids.device), ids)
        if self.seen is not None:
            self.seen[at] = True
        if self.counts is not None:
            self.counts[at] += 1

    def _of(self, rows: Sequence[int]) -> slice | list[int]:
        return slice(None) if len(rows) == self.rows else list(rows)


def _check(name: str, ids: Sequence[int], vocab_size: int) -> None:
    for token in ids:
        if not 0 <= token < vocab_size:
            raise ValueError(f"{name} must lie in 0..{vocab_size - 1}, got {token}")

"""A text that a model in training writes."""

from ..generation import Sampling, generate
from ..model.transformer import Transformer
from ..text import Tokenizer
from .settings import Sample


def write(transformer: Transformer, tokenizer: Tokenizer, sample: Sample, seed: int) -> str:
    """The prompt and what follows, up to `sample.tokens` tokens or the end of a text.

    Past its context the model goes on from the later half of what it sees. Raises ValueError for a prompt that the
    tokenizer cannot encode.
    """
    ids = tokenizer.encode(sample.prompt)
    start, half = len(ids), max(1, transformer.config.context_length // 2)
    was_training = transformer.training
    transformer.eval()
    while len(ids) - start < sample.tokens:
        seen = ids[-half:]
        room = min(transformer.config.context_length - len(seen), sample.tokens + start - len(ids))
        sampling = Sampling(temperature=sample.temperature, max_new_tokens=max(1, room), seed=seed + len(ids))
        found = generate(transformer, tokenizer, [seen], sampling)[0]
        ids += found.ids
        if found.finish_reason == "stop" or not found.ids:
            break
    transformer.train(was_training)
    return tokenizer.decode(ids)

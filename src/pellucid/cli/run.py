"""`pellucid run`: continue a text."""

import sys
from dataclasses import asdict

from .options import Json, MaxNewTokens, MinP, ModelName, Prompt, Seed, Stop, Temperature, TopK, TopP
from .talk import as_text, open_model, print_json, read_prompt


def run(
    model: ModelName,
    prompt: Prompt,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    max_new_tokens: MaxNewTokens = 128,
    seed: Seed = None,
    stop: Stop = None,
    as_json: Json = False,
) -> None:
    """Continue a text.

    The continuation alone is printed, as it comes.
    """
    text = read_prompt(prompt)
    opened = open_model(model)
    if opened.fills:
        raise ValueError(f"{model} fills masks, and cannot continue a text: use pellucid fill, with [MASK] in the text")
    from ..generation.sampling import Sampling

    sampling = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        max_new_tokens=max_new_tokens,
        seed=seed,
        stop=tuple(as_text(text, "--stop") for text in stop or ()),
    )
    if as_json:
        found = opened.generate(text, sampling)
        record = {name: value for name, value in vars(found).items() if name != "trace"}
        print_json({"model": model, "prompt": text, **record, "sampling": asdict(sampling)})
        return
    for piece in opened.stream(text, sampling):
        sys.stdout.write(piece.text)
        sys.stdout.flush()
    print()

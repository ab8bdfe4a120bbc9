"""Where the parameters are: GPT-2 part by part, its family, and the rule of thumb 12 d^2 L."""

from ..inside.trace import Trace
from ..model.budget import budget
from ..model.config import Config
from ..views import Table
from .drawing import Bars
from .found import Found

GPT2 = {"small": (768, 12, 12), "medium": (1024, 24, 16), "large": (1280, 36, 20), "XL": (1600, 48, 25)}


def gpt2(size: str = "small") -> Config:
    """The shape of a GPT-2 (Radford et al. 2019) by its size's name: width, blocks and heads; all else is shared."""
    width, blocks, heads = GPT2[size]
    return Config(vocab_size=50257, context_length=1024, n_layers=blocks, d_model=width, n_heads=heads)


def parts(config: Config) -> dict[str, int]:
    """The parameters of a model by what they are for: in one block, in all blocks, and around them."""
    count = budget(config)
    lines = {line.part: line.count for line in count.lines}
    block = {line.part: line.count for line in count.block}
    attention = sum(number for part, number in block.items() if part.startswith(("attention", "cross-attention")))
    norms = sum(number for part, number in block.items() if "norm" in part)
    blocks = sum(number for part, number in lines.items() if part.endswith("blocks"))
    embedding = sum(number for part, number in lines.items() if part.endswith(("embedding", "token types")))
    each = {"attention": attention, "feed-forward": block["feed-forward"], "norms": norms, "block": sum(block.values())}
    around = {"blocks": blocks, "embeddings": embedding, "rest": count.total - blocks - embedding}
    return {**each, **around, "total": count.total, "rule": count.rule}


def budget_alone() -> Found:
    """GPT-2 small, part by part."""
    return _budget(gpt2(), "GPT-2 small")


def budget_on(trace: Trace) -> Found:
    """The loaded model, part by part."""
    return _budget(trace.transformer.config, "the model")


def _budget(config: Config, name: str) -> Found:
    count, found = budget(config), parts(config)
    block = Table(
        f"one block of {name}",
        ("part", "formula", "parameters"),
        (
            *((line.part, line.formula, line.count) for line in count.block),
            ("= attention", None, found["attention"]),
            ("= block", None, found["block"]),
        ),
        f"The feed-forward layer holds {found['feed-forward'] / found['attention']:.3f} times what attention holds.",
    )
    rows = [(line.part, line.formula, line.count, line.count / found["total"]) for line in count.lines]
    total = ("= total", None, found["total"], 1.0)
    note = f"Rule of thumb 12 d^2 L: {found['rule']:,}; exact for the blocks: {found['blocks']:,}."
    if name == "GPT-2 small":
        note += " The report that came with the model said 117M."
    whole = Table(name, ("part", "formula", "parameters", "share"), (*rows, total), note)
    return Found((block, whole), Bars(Table(name, whole.columns, tuple(rows)), "parameters"))


def family() -> Found:
    """The four sizes of GPT-2: exact counts beside 12 d^2 L, and the share that the embeddings take."""
    rows, shares = [], []
    for size, (width, blocks, heads) in GPT2.items():
        found = parts(gpt2(size))
        rows.append((size, width, blocks, heads, 2 * blocks, found["total"], found["rule"]))
        ratio = found["feed-forward"] / found["attention"]
        shares.append((size, found["embeddings"] / found["total"], found["rule"] / found["blocks"], ratio))
    counts = Table(
        "the GPT-2 family", ("size", "width", "blocks", "heads", "sublayers", "parameters", "12 d^2 L"), tuple(rows)
    )
    columns = ("size", "embeddings / all", "12 d^2 L / blocks", "feed-forward / attention")
    share = Table("shares", columns, tuple(shares), "Embeddings: tokens and positions.")
    return Found((counts, share), Bars(share, "embeddings / all"))

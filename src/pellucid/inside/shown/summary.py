"""What a page must know of a model and of a run before it asks for anything."""

from typing import Any

from ...model.budget import budget
from ...model.config import Bidirectional, Config, Window
from ...model.transformer import Transformer
from ...text import Tokenizer
from ...views.table import Table
from ..reading import state_sites
from ..run import Run
from ..site_table import site_table
from .edits_said import edit_said
from .next_tokens import next_tokens

NEXT = 10


def model_info(transformer: Transformer, name: str, id: str) -> dict[str, Any]:
    """A model: its shape, its masks and scales layer by layer, where its parameters are, and its sites."""
    config = transformer.config
    return {
        "id": id,
        "name": name,
        "family": "encoder-decoder" if config.encoder is not None else "decoder" if config.causal else "encoder",
        "dtype": str(transformer.W_U.dtype).removeprefix("torch."),
        "parameters": budget(config).total,
        "prefix": transformer.prefix,
        "config": config.to_dict(),
        "causal": config.causal,
        "fills": not config.causal and config.head is not None,
        "gated": config.gated,
        "masks": [_mask(config, layer) for layer in range(config.n_layers)],
        "attention_scale": [config.attention_scale(layer) for layer in range(config.n_layers)],
        "vocab_size": config.vocab_size,
        "budget": budget_table(config, name).to_json(),
        "sites": site_table(transformer, name).to_json(),
    }


def budget_table(config: Config, name: str) -> Table:
    """Where the parameters are. Rows within nothing add up to all; those within blocks are of one block of these."""
    count, rows = budget(config), []
    for line in count.lines:
        rows.append((line.part, "", line.formula, line.count, line.count / count.total))
        if line.part.endswith("blocks"):
            side = config.encoder if line.part.startswith("encoder") else config
            assert side is not None, "only a model with an encoder has its blocks"
            rows += [(each.part, line.part, each.formula, each.count, None) for each in budget(side).block]
    note = f"In all {count.total:,}. Rule of thumb for the blocks, 12 d^2 L: {count.rule:,}."
    return Table(f"parameters of {name}", ("part", "within", "formula", "parameters", "share"), tuple(rows), note)


def trace_info(run: Run, id: str, model: str, text: str) -> dict[str, Any]:
    """A run of one text: its tokens, its states, its edits, and the next tokens after the last position.

    Without a head that makes logits there is no next token: None. `id` and `model` are names by which the page asks
    for more of it.
    """
    vocabulary = run.transformer.config.vocab_size
    ids = run.ids[0, run.columns(0)].tolist()
    return {
        "id": id,
        "model": model,
        "text": text,
        "ids": ids,
        "tokens": run.tokens(0),
        "texts": _texts(ids, run.tokenizer),
        "source_tokens": None if run.source is None else run.source.tokens(0),
        "states": state_sites(run.transformer),
        "edits": [edit_said(edit) for edit in run.edits],
        "next": None if run.transformer.unembed is None else next_tokens(run, k=min(NEXT, vocabulary)),
        "bytes": run.nbytes,
    }


def _texts(ids: list[int], tokenizer: Tokenizer | None) -> list[str]:
    """What each token adds to the text, an id without text nothing.

    The pieces of a character that several tokens share come with the last of them.
    """
    if tokenizer is None or not ids:
        return [str(id) for id in ids]
    decoder = tokenizer.decoder()
    texts = [decoder.push(id) if tokenizer.has_text(id) else "" for id in ids]
    return [*texts[:-1], texts[-1] + decoder.finish()]


def _mask(config: Config, layer: int) -> str:
    mask = config.mask(layer)
    if isinstance(mask, Window):
        return f"window of {mask.width}"
    return "bidirectional" if isinstance(mask, Bidirectional) else "causal"

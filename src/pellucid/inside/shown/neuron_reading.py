"""What one neuron reads and promotes, by the weights alone."""

from typing import Any

from ...model.transformer import Transformer
from ...text import Tokenizer
from ..neuron_weights import promoted, reads, write_norm


def neuron_reading(
    transformer: Transformer, tokenizer: Tokenizer | None, layer: int, neuron: int, k: int = 8
) -> dict[str, Any]:
    """The tokens that a neuron's write raises and lowers for each unit of its value, those it reads, its write's norm.

    `promoted` is None, with a `note` that says why, where logits are not linear in the stream. Raises ValueError for a
    layer, a neuron or a k that there is not.
    """
    norm, read = write_norm(transformer, layer, neuron), reads(transformer, layer, neuron, k, tokenizer)
    plain = {"layer": layer, "neuron": neuron, "write": norm, "reads": read.to_json()}
    if transformer.unembed is None:
        return {**plain, "promoted": None, "note": "This model makes no logits: a neuron promotes no tokens."}
    if transformer.head is not None:
        note = "An activation stands between the stream and the logits: a neuron promotes no tokens by itself."
        return {**plain, "promoted": None, "note": note}
    return {**plain, "promoted": promoted(transformer, layer, neuron, k, tokenizer).to_json(), "note": ""}

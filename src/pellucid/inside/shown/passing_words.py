"""What happens at each stage of a forward pass, in a short name and one plain sentence."""

from ...model.config import Bidirectional, Config, Learned, Mask, Parallel, PostNorm, RMSNorm, Rotary, Window


def said(config: Config, site: str) -> tuple[str, str]:
    """A site's short name, and the sentence that says what is done there. The site's name comes without a prefix."""
    layer = next((int(part) for part in site.split(".") if part.isdigit()), None)
    kind = site if layer is None else site.partition(".")[2]
    if kind.startswith("stream"):
        return _stream(config, site, layer or 0)
    if kind.endswith("scale"):
        return "One over the spread", _spread(config, "the sum" if ".sum" in kind else "what the norm reads")
    if kind.endswith(".sum") and layer is not None:
        return "Sum", "What was written is added to the state it was read from; the norm comes after the sum."
    first, _, last = kind.partition(".")
    if layer is None:
        return _ends(config, kind)
    return _ffn(config, last) if first == "ffn" else _attention(config, last, first == "cross", layer)


def mask_said(mask: Mask, cross: bool) -> tuple[str, str]:
    """The formula of a mask, and the sentence on it."""
    if cross:
        return "0 for every token of the source", "Nothing is hidden: every token of the source may be read."
    if isinstance(mask, Bidirectional):
        return "0 for every key", "Nothing is hidden: a token sees those after it too."
    if isinstance(mask, Window):
        words = f"Only the token itself and the {mask.width - 1} before it may be seen; the others get -inf."
        return f"0 where t - {mask.width} < s <= t, -inf elsewhere", words
    return "0 where s <= t, -inf where s > t", "Later tokens are hidden: their scores become -inf."


def _stream(config: Config, site: str, layer: int) -> tuple[str, str]:
    after = {"stream.mid": "attention", "stream.cross": "attention to the source"}.get(site.partition(".")[2])
    if after is not None:
        return f"Stream after {after}", f"The residual stream once {after} has added its update to it."
    if layer == 0:
        return "Stream", "The sum of the embeddings starts the residual stream; every block adds to it."
    if layer == config.n_layers:
        return "Last state of the stream", f"All that the {layer} layers have written to the token, in one sum."
    return "Stream", f"What {layer} layers have made of the token so far; this layer reads it and adds to it."


def _spread(config: Config, of: str) -> str:
    if isinstance(config.norm, RMSNorm):
        return f"One over the root of the mean square of {of}: the number that the norm multiplies by."
    return f"One over the standard deviation of {of}: the number that the norm multiplies by."


def _attention(config: Config, last: str, cross: bool, layer: int) -> tuple[str, str]:
    heads, kept, wide = config.n_heads, config.n_kv_heads, config.d_head
    rotated = ", turned by an angle that grows with its position" if isinstance(config.positions, Rotary) else ""
    rotated = "" if cross else rotated
    of, key = ("every token of the source", "token of the source") if cross else ("the token", "token it may see")
    shared = "" if heads == kept else f"; {heads // kept} heads share each"
    words = {
        "input": _input(config, "attention"),
        "query": ("Queries", f"What each of the {heads} heads looks for: {wide} numbers a head{rotated}."),
        "key": ("Keys", f"What {of} offers to be found by: {kept} x {wide} numbers{rotated}{shared}."),
        "value": ("Values", f"What {of} hands over when it is attended to: {kept} x {wide} numbers{shared}."),
        "scores": (
            "Scores",
            f"Each head's query times the key of each {key}, times {config.attention_scale(layer):.4g}; hidden keys "
            "are at -inf already.",
        ),
        "pattern": ("Pattern", "The softmax of the scores: each head's shares, which add up to 1."),
        "heads": ("What heads gather", "Each head's mean of the values, weighted by its pattern."),
        "writes": ("Writes", f"Each head's {wide} numbers through its part of W_O: what it adds to the stream."),
        "update": ("Update", "The sum of all the heads' writes" + (" and a bias." if config.out_bias else ".")),
    }
    return words[last]


def _ffn(config: Config, last: str) -> tuple[str, str]:
    wide = f"{config.d_ff:,}"
    active = "each up-projection times its SiLU-gate" if config.gated else "each through the activation"
    words = {
        "input": _input(config, "the feed-forward layer"),
        "gate": ("Gate", f"How far each of the {wide} neurons is opened, before SiLU."),
        "up": ("Up-projection", f"{wide} numbers, each a product of what is read with one row of weights."),
        "neurons": ("Neurons", f"The {wide} neurons: {active}."),
        "update": ("Update", "The neurons through W_down: what the feed-forward layer adds to the stream."),
    }
    return words[last]


def _input(config: Config, reader: str) -> tuple[str, str]:
    if isinstance(config.block, PostNorm):
        return "Read", f"What {reader} reads: the stream as it is, since the norm comes after the sum."
    both = isinstance(config.block, Parallel) and config.block.norms == 1
    shared = ", one for both sublayers" if both else ""
    return "Norm", f"What {reader} reads: a normalised copy of the stream{shared}; the stream itself stays as it is."


def _ends(config: Config, kind: str) -> tuple[str, str]:
    learned = isinstance(config.positions, Learned)
    position = "A learned vector of its position" if learned else "Sines and cosines of its position"
    words = {
        "embed.token": ("Token", "The token's own row of the embedding matrix."),
        "embed.position": ("Position", f"{position}, added to the token."),
        "embed.type": ("Type", "A learned vector that says which of the texts the token belongs to."),
        "embed.sum": ("Sum of embeddings", "What goes through the norm of the embedding."),
        "final.normed": ("Final norm", "The last state, normalised: what is compared with every token."),
        "head.dense": ("Dense layer", "The prediction head's own layer: one more matrix of the model's width."),
        "head.active": ("Activation", "The dense layer's numbers through the activation."),
        "head.normed": ("Norm of the head", "Normalised: what is compared with every token."),
        "logits": ("Logits", f"One number for each of the {config.vocab_size:,} tokens; the greatest are shown."),
        "pooled": ("Pooled", "The first token's final stream through one more layer: the text as one vector."),
        "head.next_sentence": ("Next sentence", "Two numbers: whether the second text follows the first, or not."),
    }
    return words[kind]

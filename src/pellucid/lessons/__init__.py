"""The lessons' claims, worked examples and numbers, each a small function that computes them.

`LESSONS` lists them. A lesson is answered by itself (`alone`), or on traces of a model (`on`), and finds tables and a
figure.
"""

from difflib import get_close_matches

from . import attention, depth, ffn, heads, learning, looking, norms, parameters, stream, sublayers
from .found import Found, Lesson

__all__ = ["LESSONS", "Found", "Lesson", "lesson"]

_IT = "The animal did not cross the street because it was too"

LESSONS = (
    # The model, from one end to the other.
    Lesson("budget", "Where the parameters are, part by part.", parameters.budget_alone, parameters.budget_on),
    Lesson("family", "The four sizes of GPT-2, beside 12 d^2 L.", parameters.family),
    Lesson("stack", "T x d in and out of every sublayer.", on=stream.stack_on, any_model=True),
    Lesson("input", "The stream begins as token plus position.", on=stream.input_on, any_model=True),
    Lesson("block", "One block line by line, by its formula.", on=stream.block_on, any_model=True),
    Lesson("attention", "Q, K, V, scores, mask, softmax, A V, W_O: every line by its formula.",
           on=sublayers.attention_on, any_model=True),
    Lesson("feed-forward", "Up, activation (or gate), down: every line by its formula.", on=sublayers.feed_forward_on,
           any_model=True),
    Lesson("corrections", "The last state is the embedding plus all corrections.", on=stream.corrections_on,
           any_model=True),
    Lesson("unembedding", "The final norm, then E^T or a matrix of its own.", on=sublayers.unembedding_on,
           any_model=True),
    Lesson("next-token", "Every position is scored against the token that follows.", on=stream.next_token_on,
           any_model=True),
    # Norms.
    Lesson("layer-norm", "Layer norm step by step, and what undoes it.", norms.layer_norm, norms.layer_norm_on,
           numbers="the vector"),
    Lesson("rms-norm", "RMSNorm takes no mean, so a number added to all features changes it.", norms.rms_norm,
           numbers="the vector"),
    Lesson("batch-norm", "Other examples in the batch change batch norm, and not layer norm.", norms.batch_norm),
    # Attention.
    Lesson("scaling", "The variance of q.k is d_k, and 1 after scaling.", attention.scaling),
    Lesson("saturation", "Unscaled scores saturate the softmax.", attention.saturation),
    Lesson("softmax", "Scores to probabilities: edited, scaled, at three temperatures.", attention.softmax,
           attention.softmax_on, numbers="the scores q.k"),
    Lesson("causal-mask", "No query sees a later key; logits equal those of the text's beginning.",
           attention.causal_mask, attention.causal_mask_on),
    Lesson("heads", "H heads cost what one of full width costs; their writes add up.", heads.heads, heads.heads_on),
    Lesson("cost", "Attention's work grows with T^2, the feed-forward layer's with T.", attention.cost),
    Lesson("recomputed", "One head on two texts: fixed weights, another pattern.", on=heads.recomputed_on,
           texts=(f"{_IT} tired", f"{_IT} wide")),
    # The feed-forward layer.
    Lesson("gelu", "GELU beside ReLU, and how far its tanh form is off.", ffn.gelu),
    Lesson("dead-units", "Units that no input wakes get no gradient under ReLU.", ffn.dead_units, ffn.dead_units_on),
    Lesson("gated", "A gated layer of width 8/3 d is as large as a plain one of 4 d.", ffn.gated),
    Lesson("position-wise", "In the feed-forward layer no position sees another.", on=ffn.position_wise_on,
           any_model=True),
    # Depth and training.
    Lesson("shortcuts", "Gradients without and with shortcuts, beside a published table.", depth.shortcuts),
    Lesson("pre-post-norm", "Gradients at the start, with the norm before and after the sum.",
           depth.pre_and_post_norm),
    Lesson("stream-growth", "The stream grows with depth where nothing norms it.", depth.stream_growth,
           depth.stream_growth_on),
    Lesson("learning", "Cross-entropy falls from that of guessing, and the model writes.", learning.learning),
    # Looking inside.
    Lesson("lens", "What each depth would say.", on=looking.lens_on),
    Lesson("contributions", "A logit as a sum of what every sublayer wrote.", on=looking.contributions_on),
    Lesson("cancelling", "What is written stays, unless later writes cancel it.", on=looking.cancelling_on),
    Lesson("trajectory", "The stream as a path: step lengths, angles, its picture.", on=looking.trajectory_on),
    Lesson("depth-used", "How much each block does to each token.", on=looking.depth_used_on),
    Lesson("specialised", "Heads of a kind, against chance.", on=looking.specialise_on),
    Lesson("induction", "A B ... A predicts B: two heads, and what happens without one.", looking.induction),
    Lesson("key-value", "What neurons read, and which tokens they promote.", on=looking.key_value_on),
    Lesson("superposition", "More directions than dimensions, nearly at right angles.", on=looking.superposition_on),
    Lesson("toy-model", "Sparse features share dimensions: a toy model, trained in seconds.", looking.toy_model),
)  # fmt: skip


def lesson(name: str) -> Lesson:
    """A lesson by its name. Raises ValueError, naming the nearest, for one that there is not."""
    known = {each.name: each for each in LESSONS}
    if name not in known:
        near = get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"the nearest are {', '.join(near)}" if near else "pellucid lesson lists them"
        raise ValueError(f"there is no lesson {name!r}; {hint}")
    return known[name]

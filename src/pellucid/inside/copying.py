"""Whether a head raises the logits of what it attends to: as it behaves on a text, and by its weights alone."""

import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor

from ..model.transformer import Transformer
from .circuits import attention_of, embedding, exact, readers, unembedding
from .head_scores import HeadScores, patterns
from .trace import Trace

_DRAWS = 200


@torch.no_grad()
def copying(trace: Trace, attended: str = "argmax") -> HeadScores:
    """How much of what a head raises is the token that it attends to (Olsson et al. 2022), in [-1, 1].

    For each query the head's write through the unembedding (the final norm's gain folded in; its scale has no
    influence), minus the mean over the vocabulary, through ReLU: its raise of every token. Score 2 r - 1 with
    r = raise of the attended token / raise of all distinct tokens of the row, so that a perfect copier has 1. The
    attended token is the one that gets most attention ("argmax"), or every token weighted by the attention it gets
    ("pattern"). Both raises are summed over the n queries before they are divided, so that a query for which the head
    writes next to nothing counts for next to nothing; NaN for a head that raises nothing. The null 2 / (distinct
    tokens) - 1 is that of a head which raises all of them alike. Raises ValueError for a model without plain logits.
    """
    if attended not in ("argmax", "pattern"):
        raise ValueError(f"attended must be 'argmax' or 'pattern', got {attended!r}")
    transformer, rows = trace.transformer, range(trace.ids.shape[0])
    mean = unembedding(transformer).mean(0)
    samples = [trace.ids[row, trace.columns(row)].unique() for row in rows]
    rises = [(unembedding(transformer, sample) - mean).double() for sample in samples]
    by_layer, n = [], 0
    for layer, (pattern, seen) in enumerate(patterns(trace)):
        heads = trace[f"{transformer.prefix}{layer}.attention.heads"].double()
        out = exact(attention_of(transformer, layer).W_O).double()
        by_row, n = [], int(seen.any(-1).sum())
        for row in rows:
            raised = torch.einsum("thk,hkd,nd->htn", heads[row], out, rises[row]).relu()
            raised = raised * seen[row].any(-1)[None, :, None]
            is_token = trace.ids[row][:, None] == samples[row][None]
            weighted = raised * _weights(pattern[row], is_token, attended)
            by_row.append(torch.stack((weighted.sum((1, 2)), raised.sum((1, 2)))))
        by_layer.append(torch.stack(by_row).sum(0).cpu())
    attended_raise, all_raise = torch.stack(by_layer, dim=1)
    null = sum(2 / len(sample) - 1 for sample in samples) / len(samples)
    formula = f"2 r - 1, r = sum over q of raise of the attended token ({attended}) / of all tokens in the row"
    score = 2 * attended_raise / all_raise - 1
    nulls, sd = torch.full_like(score, null), torch.full_like(score, torch.nan)
    return HeadScores("copying", formula, score, nulls, sd, torch.full_like(score, n, dtype=torch.long))


def _weights(
    pattern: Float[Tensor, "H T S"], is_token: Bool[Tensor, "S tokens"], attended: str
) -> Float[Tensor, "H T tokens"]:
    """How much each query counts each token of the row as attended to."""
    if attended == "pattern":
        return pattern @ is_token.to(pattern)
    return is_token[pattern.argmax(-1)].to(pattern)


@torch.no_grad()
def copying_eigenvalues(transformer: Transformer, centred: bool = False, seed: int = 0) -> HeadScores:
    """Sum of Re(lambda) / sum of |lambda| over the eigenvalues of W_E W_OV W_U (Elhage et al. 2021), in [-1, 1].

    Positive for a head that raises the tokens it attends to. The eigenvalues are those of the K x K matrix
    W_O W_U W_E W_V, with the gains (and centring) of the reading and of the final norm folded in for this alone. Null
    and its spread: Gaussian W_V and W_O of the same sizes between the model's own embedding and unembedding; n is the
    number of eigenvalues. `centred` takes the vocabulary's mean off W_U, which changes no probability: in trained
    models that one direction can be so large that random heads reach +-1. Raises ValueError for a model without plain
    logits.
    """
    words = unembedding(transformer)
    through = (words - words.mean(0) if centred else words).T @ embedding(transformer)
    scores = []
    for layer in range(transformer.config.n_layers):
        out = exact(attention_of(transformer, layer).W_O)
        scores.append(positive_share(_eigenvalues(out, through, readers(transformer, layer, "value"))).cpu())
    score, K = torch.stack(scores), transformer.config.d_head
    null = _null(through.double().cpu(), K, seed)
    formula = f"sum of Re(lambda) / sum of |lambda|, lambda of W_E W_OV W_U{', W_U centred' if centred else ''}"
    return HeadScores(
        "copying by eigenvalues",
        formula,
        score,
        torch.full_like(score, float(null.mean())),
        torch.full_like(score, float(null.std())),
        torch.full_like(score, K, dtype=torch.long),
    )


def positive_share(eigenvalues: Complex[Tensor, "heads K"]) -> Float[Tensor, "heads"]:
    """Sum of Re(lambda) / sum of |lambda|; NaN where all are 0."""
    return eigenvalues.real.sum(-1) / eigenvalues.abs().sum(-1)


def _eigenvalues(
    out: Float[Tensor, "heads K D"], through: Float[Tensor, "D D"], value: Float[Tensor, "heads D K"]
) -> Complex[Tensor, "heads K"]:
    return torch.linalg.eigvals((out @ through @ value).double())


def _null(through: Float[Tensor, "D D"], K: int, seed: int) -> Float[Tensor, "draws"]:
    """The score of heads whose weights are random, of the model's own rank."""
    draw = torch.Generator().manual_seed(seed)
    D = through.shape[0]
    out = torch.randn(_DRAWS, K, D, dtype=torch.float64, generator=draw)
    value = torch.randn(_DRAWS, D, K, dtype=torch.float64, generator=draw)
    return positive_share(_eigenvalues(out, through, value))

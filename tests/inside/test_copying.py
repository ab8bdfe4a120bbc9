"""Copying scores against their formulas, and on heads that copy by construction."""

import pytest
import torch

from pellucid.inside.copying import _eigenvalues, copying, copying_eigenvalues, positive_share
from pellucid.inside.trace import trace
from pellucid.model.config import Config, Init, MaskedLanguage, RMSNorm
from tiny import VOCAB, build, random_ids, tiny_gpt2


@pytest.mark.parametrize("attended", ["argmax", "pattern"])
def test_behaviour_is_its_formula(attended):
    model = tiny_gpt2(tied=False)
    ids, mask = random_ids(2, 7), torch.ones(2, 7, dtype=torch.long)
    mask[1, :2] = 0
    found = trace(model, ids, mask)
    scores = copying(found, attended)
    U = model.final_norm.weight * model.unembed.weight
    U = U - U.mean(1, keepdim=True)  # the norm's centring; then the mean over the vocabulary
    U = U - U.mean(0)
    for layer in range(2):
        writes, pattern = found[f"{layer}.attention.writes"], found[f"{layer}.attention.pattern"]
        for head in range(4):
            hit, everything = 0.0, 0.0
            for row, first in ((0, 0), (1, 2)):
                words = sorted(set(ids[row, first:].tolist()))
                for q in range(first, 7):
                    rise = {t: max(0.0, float(writes[row, q, head] @ U[t])) for t in words}
                    A = pattern[row, head, q]
                    weights = {k: float(A[k]) for k in range(first, 7)}
                    if attended == "argmax":
                        weights = {int(A.argmax()): 1.0}
                    hit += sum(weight * rise[int(ids[row, k])] for k, weight in weights.items())
                    everything += sum(rise.values())
            assert float(scores.score[layer, head]) == pytest.approx(2 * hit / everything - 1, abs=1e-9)
    sizes = [len(set(ids[0].tolist())), len(set(ids[1, 2:].tolist()))]
    assert float(scores.null[0, 0]) == pytest.approx(1 / sizes[0] + 1 / sizes[1] - 1, abs=1e-12)
    assert int(scores.n[0, 0]) == 12
    with pytest.raises(ValueError, match="'argmax' or 'pattern', got 'mean'"):
        copying(found, "mean")


def copier(sign: float) -> tuple:
    """One layer whose heads write sign times what they read, seen from tied embeddings."""
    model = build(Config(VOCAB, 16, 1, 24, 3, norm=RMSNorm(), init=Init(0.4)))
    attention = model.blocks[0].attention
    for norm in (attention.norm, model.final_norm):
        norm.weight.fill_(1.0)
    for head in range(3):
        attention.W_O[head].copy_(sign * attention.W_V[head].T)
    return model, copying_eigenvalues(model)


def test_eigenvalues_of_copiers_and_of_their_opposites():
    for sign in (1.0, -1.0):
        _, scores = copier(sign)
        assert scores.score.flatten().tolist() == pytest.approx([sign] * 3, abs=1e-9)
        assert scores.n.flatten().tolist() == [8] * 3
        assert float(scores.sd[0, 0]) > 0.05
        assert float((scores.z * sign).min()) > 3


@pytest.mark.parametrize("centred", [False, True])
def test_eigenvalues_are_those_of_the_whole_circuit(centred):
    model = tiny_gpt2(tied=False)
    scores = copying_eigenvalues(model, centred)
    centre, words = torch.eye(32).double() - 1 / 32, model.unembed.weight
    if centred:
        words = words - words.mean(0)
    for layer, block in enumerate(model.blocks):
        for head in range(4):
            attention = block.attention
            W_OV = centre @ torch.diag(attention.norm.weight) @ attention.W_V[head] @ attention.W_O[head]
            whole = model.embed.token.weight @ W_OV @ centre @ torch.diag(model.final_norm.weight) @ words.T
            values = torch.linalg.eigvals(whole)
            expected = float(values.real.sum() / values.abs().sum())
            assert float(scores.score[layer, head]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("rank", "sd"), [(8, 0.18), (16, 0.10), (64, 0.03)])
def test_the_spread_of_random_heads_falls_with_their_rank(rank, sd):
    draw = torch.Generator().manual_seed(0)
    E = torch.randn(1000, 64, generator=draw, dtype=torch.float64)
    out = torch.randn(500, rank, 64, generator=draw, dtype=torch.float64)
    value = torch.randn(500, 64, rank, generator=draw, dtype=torch.float64)
    scores = positive_share(_eigenvalues(out, E.T @ E, value))
    assert float(scores.std()) == pytest.approx(sd, rel=0.15)
    assert abs(float(scores.mean())) < 4 * sd / 500**0.5


def test_a_model_without_plain_logits_is_refused():
    model = tiny_gpt2(head=MaskedLanguage())
    for ask in (lambda: copying(trace(model, random_ids(1, 5))), lambda: copying_eigenvalues(model)):
        with pytest.raises(ValueError, match="no plain unembedding"):
            ask()

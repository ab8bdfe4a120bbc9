"""Circuits and their composition against the model's own scores and writes, and against whole matrices."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from pellucid.inside import composition as composing
from pellucid.inside.circuits import full_ov, full_qk, ov, qk
from pellucid.inside.composition import composition, weight_prefix_matching
from pellucid.inside.factored import Factored
from pellucid.model.config import Config, Init, LayerNorm, PostNorm, RMSNorm
from pellucid.model.rotary import DynamicNTK, Rotary
from tiny import VOCAB, build, configs, random_ids, tiny_gpt2, traced


def dense(found: Factored) -> torch.Tensor:
    return found.left @ found.right


def read_as(model, layer: int, x: torch.Tensor) -> torch.Tensor:
    """A state over its norm's denominator: centring and gain are the circuit's."""
    norm = model.config.norm
    if isinstance(model.config.block, PostNorm):
        return x
    centred = x - x.mean(-1, keepdim=True) if isinstance(norm, LayerNorm) else x
    return x / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()


@pytest.mark.slow
@settings(max_examples=15)
@given(configs())
def test_circuits_are_the_models_scores_and_writes(config):
    """With no biases: score(q, k) = x_q W_QK(q - k) x_k^T, and what a head writes is its pattern of x_k W_OV."""
    norm = replace(config.norm, bias=False) if isinstance(config.norm, LayerNorm) else config.norm
    config = replace(config, norm=norm, qkv_bias=False, out_bias=False)
    model = build(config)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    found = traced(model, random_ids(2, 5))
    for layer in range(config.n_layers):
        site = f"{model.prefix}{layer}"
        x = read_as(model, layer, found[f"{site}.stream"][0])
        scores, pattern = found[f"{site}.attention.scores"][0], found[f"{site}.attention.pattern"][0]
        for head in range(config.n_heads):
            for q, k in scores[head].isfinite().nonzero().tolist():
                fit = x[q] @ dense(qk(model, layer, head, q - k, 5)) @ x[k] * config.attention_scale(layer)
                torch.testing.assert_close(fit, scores[head, q, k], atol=1e-9, rtol=1e-9)
            writes = pattern[head] @ x @ dense(ov(model, layer, head))
            torch.testing.assert_close(writes, found[f"{site}.attention.writes"][0, :, head], atol=1e-9, rtol=1e-9)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_frequencies_that_depend_on_the_length_are_those_of_the_length():
    rotary = Rotary(scaling=DynamicNTK(2.0, 4))
    model = build(Config(VOCAB, 16, 1, 24, 3, positions=rotary, norm=RMSNorm(), qkv_bias=False, init=Init(0.4)))
    found = traced(model, random_ids(1, 9))
    x, scores = read_as(model, 0, found["0.stream"][0]), found["0.attention.scores"][0]
    for length, equal in ((9, True), (4, False)):
        fit = x[7] @ dense(qk(model, 0, 1, 5, length)) @ x[2] * 8**-0.5
        assert (abs(float(fit - scores[1, 7, 2])) < 1e-9) == equal


def test_full_circuits_go_from_tokens_to_tokens():
    model = tiny_gpt2(tied=False, embedding_scale=2.0, logit_scale=0.5)
    E, gain, final = model.embed.token.weight * 2.0, model.blocks[1].attention.norm.weight, model.final_norm.weight
    attention, centre = model.blocks[1].attention, torch.eye(32).double() - 1 / 32
    reads = centre @ torch.diag(gain)
    W_OV = reads @ attention.W_V[2] @ attention.W_O[2]
    W_QK = reads @ attention.W_Q[2] @ attention.W_K[2].T @ reads.T
    logits = centre @ torch.diag(final) @ model.unembed.weight.T * 0.5
    torch.testing.assert_close(dense(full_ov(model, 1, 2)), E @ W_OV @ logits, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(dense(full_qk(model, 1, 2)), E @ W_QK @ E.T, atol=1e-10, rtol=1e-10)
    assert full_ov(model, 1, 2).shape == (50, 50)
    for layer, head in ((2, 0), (0, 4), (-1, 0)):
        with pytest.raises(ValueError, match=r"0\.\."):
            ov(model, layer, head)


def test_grouped_queries_share_their_groups_keys_and_values():
    model = build(Config(VOCAB, 16, 1, 24, 6, n_kv_heads=2, d_head=4, norm=RMSNorm(), init=Init(0.4)))
    attention, gain = model.blocks[0].attention, model.blocks[0].attention.norm.weight[:, None]
    for head in range(6):
        group = head * 2 // 6
        expected = (gain * attention.W_V[group]) @ attention.W_O[head]
        torch.testing.assert_close(dense(ov(model, 0, head)), expected, atol=1e-12, rtol=1e-12)
        expected = (gain * attention.W_Q[head]) @ (gain * attention.W_K[group]).T
        torch.testing.assert_close(dense(qk(model, 0, head)), expected, atol=1e-12, rtol=1e-12)


# --- The factored matrix ---


def factors(n: int, r: int, m: int, seed: int = 0) -> Factored:
    draw = torch.Generator().manual_seed(seed)
    return Factored(*(torch.randn(shape, generator=draw, dtype=torch.float64) for shape in ((n, r), (r, m))))


def test_a_factored_matrix_answers_as_the_whole_one_would():
    found = factors(7, 3, 9)
    whole = dense(found)
    torch.testing.assert_close(found.rows([1, 4]), whole[[1, 4]])
    torch.testing.assert_close(found.rows(2), whole[2])
    torch.testing.assert_close(found.columns([8, 0]), whole[:, [8, 0]])
    torch.testing.assert_close(found.diagonal(), whole.diagonal())
    torch.testing.assert_close(dense(found.T), whole.T)
    assert found.norm() == pytest.approx(float(whole.norm()), abs=1e-12)
    torch.testing.assert_close(found.singular_values(), torch.linalg.svdvals(whole)[:3])
    for other in (factors(9, 2, 5), factors(9, 6, 5)):
        product = found @ other
        torch.testing.assert_close(dense(product), whole @ dense(other))
        assert product.left.shape[1] == min(3, other.left.shape[1])
    square = factors(6, 3, 6)
    assert square.trace() == pytest.approx(float(dense(square).trace()), abs=1e-12)
    largest = torch.linalg.eigvals(dense(square)).abs().sort(descending=True).values[:3]
    torch.testing.assert_close(square.eigenvalues().abs().sort(descending=True).values, largest)
    assert repr(found) == "Factored(7 x 9, rank 3 at most)"


@pytest.mark.parametrize("cells", [1, 20, 10**6])
def test_the_largest_entries_are_found_part_by_part(monkeypatch, cells):
    monkeypatch.setattr("pellucid.inside.factored._CELLS", cells)
    found = factors(7, 3, 9)
    best = dense(found).flatten().sort(descending=True)
    expected = [(at // 9, at % 9) for at in best.indices[:11].tolist()]
    top = found.top(11)
    assert [entry[:2] for entry in top] == expected
    assert [entry[2] for entry in top] == pytest.approx(best.values[:11].tolist(), abs=1e-12)


@pytest.mark.parametrize("kind", ["long and short rows", "all below 0", "one row", "rank above the size"])
def test_the_largest_entries_are_found_where_lengths_leave_room(monkeypatch, kind):
    """Against the whole matrix, and without looking at all of it where most rows are short."""
    monkeypatch.setattr("pellucid.inside.factored._CELLS", 60)
    found = factors(40, 3, 30)
    match kind:
        case "long and short rows":
            found = Factored(found.left * torch.logspace(0, -6, 40).double()[:, None], found.right)
        case "all below 0":
            found = Factored(found.left.abs(), -found.right.abs() - 1)
        case "one row":
            found = Factored(found.left[:1], found.right)
        case _:
            found = factors(4, 9, 30)
    best = dense(found).flatten().sort(descending=True)
    top = found.top(12)
    assert [30 * row + column for row, column, _ in top] == best.indices[:12].tolist()
    assert [value for *_, value in top] == pytest.approx(best.values[:12].tolist(), abs=1e-12)
    even = found.balanced()
    torch.testing.assert_close(dense(even), dense(found), atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(even.left.norm(dim=0), even.right.norm(dim=1))


def test_short_rows_are_not_multiplied(monkeypatch):
    seen = []
    real = Tensor.max
    monkeypatch.setattr("pellucid.inside.factored._CELLS", 60)
    monkeypatch.setattr(Tensor, "max", lambda self: seen.append(self.numel()) or real(self))
    found = factors(40, 3, 30)
    Factored(found.left * torch.logspace(0, -12, 40).double()[:, None], found.right).top(3)
    assert 3 <= sum(seen) < 40 * 30 / 4


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"\(7, 9\) and \(8, 5\) do not fit"):
        factors(7, 3, 9) @ factors(8, 2, 5)
    with pytest.raises(ValueError, match=r"only a square matrix .*\(7, 9\)"):
        factors(7, 3, 9).trace()
    with pytest.raises(ValueError, match=r"1\.\.63 .*got 0"):
        factors(7, 3, 9).top(0)


# --- Composition ---


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("norm", [LayerNorm(), RMSNorm()])
def test_composition_is_its_formula(groups, norm):
    config = Config(VOCAB, 16, 3, 24, 4, n_kv_heads=groups, norm=norm, positions=Rotary(), init=Init(0.4))
    model = build(config)
    matrices = {
        (layer, head): (dense(ov(model, layer, head)), dense(qk(model, layer, head, 1)))
        for layer in range(3)
        for head in range(4)
    }
    for kind in ("Q", "K", "V"):
        found = composition(model, kind, offset=1)
        for (l1, h1), (W_OV1, _) in matrices.items():
            for (l2, h2), (W_OV2, W_QK2) in matrices.items():
                if l1 >= l2:
                    assert bool(found.score[l1, h1, l2, h2].isnan())
                    continue
                later = {"Q": W_QK2, "K": W_QK2.T, "V": W_OV2}[kind]
                expected = (W_OV1 @ later).norm() / (W_OV1.norm() * later.norm())
                torch.testing.assert_close(found.score[l1, h1, l2, h2], expected, atol=1e-10, rtol=1e-10)


def test_random_factors_compose_by_one_over_the_root_of_the_width():
    """Elhage et al. 2021: about 1 / sqrt(d); figures for r = 64."""
    for width, measured, root in ((768, 0.0360, 0.0361), (128, 0.0880, 0.0884)):
        mean, sd = composing._null(width, 64, seed=3)
        assert round(width**-0.5, 4) == root
        assert mean == pytest.approx(root, rel=0.01)
        assert abs(measured - mean) < 3 * sd


def test_compositions_are_ordered_and_standardised():
    model = tiny_gpt2(n_layers=3)
    found = composition(model, "K")
    known = found.score[~found.score.isnan()]
    best = found.top(5)
    assert list(best.column("score")) == known.sort(descending=True).values[:5].tolist()
    row = best.rows[0]
    assert row[4] == float(found.score[row[:4]])
    assert row[5] == pytest.approx((row[4] - found.null) / found.sd, abs=1e-9)
    assert row[6] == pytest.approx(float((row[4] - known.mean()) / known.std()), abs=1e-9)
    into = found.into(2, 3)
    assert len(into) == 8
    assert set(into.column("to layer")) == {2}
    assert list(into.column("score")) == sorted(into.column("score"), reverse=True)
    assert len(found.table()) == len(found.to_json()["rows"]) == 3 * 16
    with pytest.raises(ValueError, match="'Q', 'K' or 'V', got 'k'"):
        composition(model, "k")
    with pytest.raises(ValueError, match="got 3, 0"):
        found.into(3, 0)


def test_prefix_matching_by_weights_is_its_formula():
    model = build(Config(VOCAB, 16, 3, 24, 4, n_kv_heads=2, norm=RMSNorm(), init=Init(0.4)))
    previous = torch.rand(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    E = model.embed.token.weight
    found = weight_prefix_matching(model, previous)
    for layer in range(3):
        for head in range(4):
            moved = sum(
                (previous[e, h] * dense(ov(model, e, h)) for e in range(layer) for h in range(4)), torch.zeros(24, 24)
            )
            expected = (E @ dense(qk(model, layer, head)) @ moved.double().T @ E.T).trace()
            torch.testing.assert_close(found[layer, head], expected, atol=1e-8, rtol=1e-9)

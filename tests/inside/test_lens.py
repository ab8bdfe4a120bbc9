"""Lenses: what each depth would say, and lenses fitted to a model, beside formulas written here."""

import json
import struct

import pytest
import torch
from hypothesis import given, settings

from pellucid.inside.asking import ask
from pellucid.inside.jacobian_lens import JacobianLens, jacobian_lens
from pellucid.inside.lens_file import write_lens
from pellucid.inside.trace import trace
from pellucid.inside.tuned_lens import TunedLens, lens_divergence, tune_lens
from pellucid.model.activation import activate
from pellucid.model.config import Config, Init
from tiny import VOCAB, build, configs, passed, random_ids, tiny_gpt2, traced


@pytest.mark.slow
@settings(max_examples=20)
@given(configs())
def test_the_lens_has_fresh_statistics_and_ends_in_the_models_own_distribution(config):
    model, ids = build(config), random_ids(1, 5)
    found = traced(model, ids)
    table = found.lens(token=9)
    assert len(table) == config.n_layers + 1
    chances = passed(model, ids)[0, -1].softmax(-1)
    assert table.rows[-1][3] == pytest.approx(float(chances.max()), rel=1e-14)
    assert table.rows[-1][4] == pytest.approx(float(chances[9]), rel=1e-14)
    assert table.column("KL")[-1] == 0.0
    for depth, site, top, best, followed, rank, entropy, divergence in table:
        assert site == f"{model.prefix}{depth}.stream"
        x = found[site][:, -1:]
        x = x if model.final_norm is None else model.final_norm(x)
        if model.head is not None:
            x = model.head.norm(activate(config.activation, model.head.dense(x)))
        logits = x @ model.W_U.T + (0 if model.unembed.bias is None else model.unembed.bias)
        expected = (logits * config.logit_scale)[0, 0].softmax(-1)
        assert int(top) == int(expected.argmax())
        assert best == pytest.approx(float(expected.max()), abs=1e-12)
        assert followed == pytest.approx(float(expected[9]), abs=1e-12)
        assert rank == 1 + int((expected > expected[9]).sum())
        kl = float((chances * (chances / expected).log()).sum())
        assert divergence == pytest.approx(kl, abs=1e-9)
        assert entropy == pytest.approx(float(-(expected * expected.clamp(min=1e-300).log()).sum()), abs=1e-10)


def test_int_1_the_lens_at_the_end_is_the_logits_bit_for_bit():
    model, ids = tiny_gpt2(), random_ids(1, 6)
    found = trace(model, ids)
    at_the_end = ask(found, lambda point: point.unembed(point.state(-1)), 0, -1, ["final"])
    assert torch.equal(at_the_end, model(ids)[0, -1])
    unscaled = torch.nn.functional.layer_norm(found["2.stream"], (32,)) @ model.W_U.T
    assert (unscaled - model(ids)).abs().max() > 0.1


def test_top_gives_the_most_probable_tokens():
    model, ids = tiny_gpt2(), random_ids(1, 6)
    table = trace(model, ids).top(4, position=2)
    chances = model(ids)[0, 2].softmax(-1)
    best = chances.sort(descending=True)
    assert list(table.column("id")) == best.indices[:4].tolist()
    assert table.column("probability") == pytest.approx(best.values[:4].tolist(), abs=1e-12)
    with pytest.raises(ValueError, match=r"1\.\.50 .*got 0"):
        trace(model, ids).top(0)


def untouched(layers=2, width=32) -> TunedLens:
    return TunedLens(torch.zeros(layers, width, width), torch.zeros(layers, width))


@pytest.mark.slow
@settings(max_examples=10)
@given(configs("decoder"))
def test_a_tuned_lens_is_the_logit_lens_before_it_is_trained(config):
    found = traced(build(config), random_ids(1, 5))
    lens = untouched(config.n_layers, config.d_model)
    assert found.lens(tuned=lens).rows == found.lens().rows
    assert found.lens(tuned=lens).title == "what each depth would say (tuned lens)"


def test_a_tuned_lens_reads_each_depth_through_its_own_map():
    model, ids = tiny_gpt2(), random_ids(1, 6)
    found = trace(model, ids)
    generator = torch.Generator().manual_seed(4)
    lens = TunedLens(
        torch.randn(2, 32, 32, dtype=torch.float64, generator=generator) / 6,
        torch.randn(2, 32, dtype=torch.float64, generator=generator),
    )
    table = found.lens(token=7, position=3, tuned=lens)
    for depth in range(3):
        x = found[f"{depth}.stream"][0, 3]
        x = x + lens.A[depth] @ x + lens.b[depth] if depth < 2 else x
        chances = (model.final_norm(x[None, None])[0, 0] @ model.W_U.T).softmax(-1)
        assert table.rows[depth][4] == pytest.approx(float(chances[7]), abs=1e-12)
    assert table.column("KL")[2] == 0.0


def learnable() -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """A model whose early states lie far from its last, and texts to tune a lens on; some are kept back."""
    model = build(Config(VOCAB, 16, 2, 16, 2, init=Init(0.5)), dtype=torch.float32)
    return model, [random_ids(8, 12, seed=seed) for seed in range(64)]


@pytest.mark.slow
def test_training_lowers_the_divergence_at_every_depth_on_texts_kept_back():
    model, batches = learnable()
    model.requires_grad_(True)
    weights, told = [weight.clone() for weight in model.parameters()], []
    lens = tune_lens(model, batches[4:], rate=0.02, progress=lambda step, found: told.append((step, found)))
    before, after = lens_divergence(model, batches[:4]), lens_divergence(model, batches[:4], lens)
    assert (after[:2] < 0.7 * before[:2]).all()
    assert before[2] == after[2] == 0
    assert [step for step, _ in told] == list(range(1, 61))
    first = lens_divergence(model, batches[4:5])
    assert told[0][1] == pytest.approx(float(first[:2].mean()), rel=1e-4)
    for weight, start in zip(model.parameters(), weights, strict=True):
        assert torch.equal(weight, start)
        assert weight.grad is None
    assert not lens.A.requires_grad


def test_a_divergence_is_the_mean_of_the_lens_table_over_tokens():
    model, ids = tiny_gpt2(), random_ids(2, 5)
    found = trace(model, ids)
    rows = [found.lens(row=row, position=at).column("KL") for row in (0, 1) for at in range(5)]
    expected = torch.tensor(rows, dtype=torch.float64).mean(0)
    assert torch.allclose(lens_divergence(model, [ids]), expected, atol=1e-10)
    assert torch.allclose(lens_divergence(model, [ids[:1], ids[1:]]), expected, atol=1e-10)


def test_what_a_lens_is_tuned_on_is_checked():
    model, batches = learnable()
    with pytest.raises(ValueError, match="3 steps, got 2 batches"):
        tune_lens(model, batches[:2], steps=3)
    with pytest.raises(ValueError, match="0 steps, got 0 batches"):
        tune_lens(model, [])
    with pytest.raises(ValueError, match="no ids"):
        lens_divergence(model, [])
    with pytest.raises(ValueError, match=r"0\.\.49"):
        tune_lens(model, [torch.tensor([[50]])])
    with pytest.raises(ValueError, match="2 layers of width 16, the tuned lens is for 2 of 32"):
        trace(model, batches[0]).lens(tuned=untouched())
    bert = build(Config(VOCAB, 16, 1, 16, 2, head=None))
    with pytest.raises(ValueError, match="needs logits"):
        tune_lens(bert, batches)


def test_a_lens_comes_back_from_its_file_as_it_went_into_it(tmp_path):
    model, batches = learnable()
    lens = tune_lens(model, batches, steps=2)
    lens.save(tmp_path / "lens")
    back = TunedLens.load(tmp_path / "lens", model)
    assert torch.equal(back.A, lens.A)
    assert torch.equal(back.b, lens.b)
    back.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "lens").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "lens"]
    with pytest.raises(ValueError, match="another model"):
        TunedLens.load(tmp_path / "lens", tiny_gpt2())
    with pytest.raises(ValueError, match="folder does not exist"):
        lens.save(tmp_path / "none" / "lens")


def test_files_that_are_no_lens_are_refused(tmp_path):
    model, _ = learnable()
    path, good = tmp_path / "lens", {"A": torch.zeros(2, 16, 16), "b": torch.zeros(2, 16)}

    def load(match):
        with pytest.raises(ValueError, match=match):
            TunedLens.load(path, model)

    load("there is none")
    path.write_bytes(b"no lens")
    load("not a sound safetensors file")
    write_lens(path, "Jacobian lens", good)
    load("expected a tuned lens of version 1")
    write_lens(path, "tuned lens", {"A": good["A"]})
    load("holds A, b, got")
    write_lens(path, "tuned lens", good | {"c": good["b"].clone()})
    load("holds A, b, got")
    write_lens(path, "tuned lens", good | {"b": torch.full((2, 16), torch.nan)})
    load("b must hold finite numbers")
    write_lens(path, "tuned lens", good | {"A": torch.zeros(2, 16, 16, dtype=torch.int32)})
    load("A must hold finite numbers")
    for about in ({}, {"pellucid": "{"}, {"pellucid": json.dumps({"kind": "tuned lens", "version": 2})}):
        header = json.dumps({"__metadata__": about}).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header)
        load("no JSON" if about == {"pellucid": "{"} else "version 1")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["decoder", "causal"])
def test_the_jacobian_lens_is_the_mean_derivative_of_the_final_state(form):
    model = tiny_gpt2()
    texts = [random_ids(1, length, seed=length)[0] for length in (3, 5)]
    told = []
    lens = jacobian_lens(model, texts, position=-1 if form == "decoder" else 1, progress=told.append)
    assert told == [1, 2]
    means = torch.zeros(2, 32, 32, dtype=torch.float64)
    for ids in texts:
        found, at = trace(model, ids[None]), len(ids) - 1 if form == "decoder" else 1
        here = model.begin(ids[None])
        for depth in range(2):

            def final(x, found=found, here=here, depth=depth, at=at):
                state = found.states[2 * depth].clone()
                state[0, at] = x
                return model.run(state, here, first=2 * depth)[0, at]

            x = found.states[2 * depth][0, at]
            means[depth] += torch.autograd.functional.jacobian(final, x) / 2
    assert torch.allclose(lens.J, means, atol=1e-10)


def test_the_jacobian_lens_reads_by_its_matrices_and_goes_into_a_file(tmp_path):
    model, ids = tiny_gpt2(), random_ids(1, 6)
    found, lens = trace(model, ids), jacobian_lens(model, [ids[0]])
    table = found.lens(token=4, tuned=lens)
    x = lens.J[1] @ found["1.stream"][0, -1]
    chances = (model.final_norm(x[None, None])[0, 0] @ model.W_U.T).softmax(-1)
    assert table.rows[1][4] == pytest.approx(float(chances[4]), abs=1e-12)
    assert table.column("KL")[2] == 0.0
    lens.save(tmp_path / "lens")
    assert torch.equal(JacobianLens.load(tmp_path / "lens", model).J, lens.J)
    with pytest.raises(ValueError, match="another model"):
        JacobianLens.load(tmp_path / "lens", build(Config(VOCAB, 16, 1, 16, 2)))
    with pytest.raises(ValueError, match="no texts"):
        jacobian_lens(model, [])

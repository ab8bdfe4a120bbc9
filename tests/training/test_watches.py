"""Watches against numbers worked out otherwise: autograd by hand, known ranks, an optimiser whose step is known."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pellucid.training.journal import Journal
from pellucid.training.lora import adapt
from pellucid.training.optimizers import Together
from pellucid.training.watch_curve import draw_watches, series
from pellucid.training.watches import Updates, effective_rank, gradients, rank, stream, weight_rank
from tiny import random_ids, tiny_gpt2, traced

PLACES = ["embed", "0.attention", "0.ffn", "1.attention", "1.ffn", "final"]


def with_gradients():
    model = tiny_gpt2().requires_grad_(True)
    model(random_ids(2, 5)).square().mean().backward()
    return model


def test_gradients_by_depth_make_up_the_whole_gradient():
    model = with_gradients()
    found = gradients(model)
    assert list(found) == PLACES
    assert math.hypot(*found.values()) == pytest.approx(
        torch.nn.utils.get_total_norm(w.grad for w in model.parameters())
    )
    attention = [w.grad for name, w in model.named_parameters() if "blocks.1.attention." in name]
    assert found["1.attention"] == pytest.approx(torch.nn.utils.get_total_norm(attention).item())


def test_of_an_adapted_model_only_adapters_have_gradients():
    model = tiny_gpt2()
    adapt(model)
    model(random_ids(2, 5)).square().mean().backward()
    assert list(gradients(model)) == ["0.attention", "1.attention"]


def test_the_streams_size_is_that_of_a_traces_states():
    model, ids = tiny_gpt2(), random_ids(2, 6)
    model.train()
    found, run = stream(model, ids), traced(model, ids)
    assert model.training
    assert found == {
        f"{layer}.stream": pytest.approx(run[f"{layer}.stream"].square().mean().sqrt().item()) for layer in range(3)
    }


def test_rank_counts_directions_after_the_mean_is_taken_off():
    model, ids = tiny_gpt2(), random_ids(3, 6)
    states = traced(model, ids)["2.stream"].flatten(0, 1)
    values = torch.linalg.eigvalsh(torch.cov(states.T)).clamp(min=0).sqrt()
    shares = values / values.sum()
    expected = math.exp(-sum(float(p * p.log()) for p in shares if p > 1e-12))
    assert rank(model, ids)["2.stream"] == pytest.approx(expected, rel=1e-4)


@given(st.integers(1, 6), st.floats(0.1, 10.0), st.integers(0, 1000))
def test_the_effective_rank_of_n_orthogonal_directions_of_one_length_is_n(n, scale, seed):
    torch.manual_seed(seed)
    left, right = (torch.linalg.qr(torch.randn(8, n, dtype=torch.float64))[0] for _ in range(2))
    assert effective_rank(scale * left @ right.T) == pytest.approx(n)


def test_the_effective_rank_of_two_singular_values():
    matrix = torch.diag(torch.tensor([3.0, 1.0, 0.0]))
    assert effective_rank(matrix) == pytest.approx(math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25))))
    assert math.isnan(effective_rank(torch.zeros(2, 3)))


def test_weight_rank_is_of_every_matrix_in_the_blocks():
    model = tiny_gpt2()
    found = weight_rank(model)
    assert len(found) == 2 * 4
    assert found["1.ffn.down"] == pytest.approx(effective_rank(model.blocks[1].ffn.down.weight))


def test_updates_are_those_of_the_one_step_before():
    """SGD moves a weight by lr times its gradient."""
    model = with_gradients()
    optimizer, due = Together(torch.optim.SGD(model.parameters(), lr=0.5)), []
    watch = Updates(model, optimizer, lambda: bool(due))
    optimizer.step()
    assert watch(model) == {}
    due.append(1)
    before = {name: w.detach().clone() for name, w in model.named_parameters()}
    optimizer.step()
    found = watch(model)
    assert list(found) == PLACES
    part = [name for name in before if name.startswith("blocks.0.ffn.")]
    moved = math.hypot(*(0.5 * dict(model.named_parameters())[name].grad.norm().item() for name in part))
    assert found["0.ffn"] == pytest.approx(moved / math.hypot(*(before[name].norm().item() for name in part)))
    assert watch(model) == {}
    watch.close()
    optimizer.step()
    assert watch(model) == {}


def test_an_encoder_decoder_is_refused():
    from pellucid.model.transformer import Transformer
    from tiny import with_encoder

    model = Transformer(with_encoder(tiny_gpt2().config))
    with pytest.raises(ValueError, match="without an encoder"):
        stream(model, random_ids(1, 3))


@pytest.fixture
def journal(tmp_path):
    path = tmp_path / "watches.jsonl"
    written = Journal(path)
    for step in (4, 9, 11):
        written.write({"step": step, "watch": "few", "loss": 5.0 - step, "0.0": step / 10, "chance": 0.2})
        written.write({"step": step, "watch": "many", **{f"{n}.ffn": n * step for n in range(12)}})
        heads = {f"0.{n}": n * step / 144 for n in range(12)}
        written.write({"step": step, "watch": "induction", **heads, "chance": 0.3})
    written.write({"step": 12, "watch": "few", "0.0": float("nan")})
    written.close()
    return path


def test_a_series_counts_steps_taken_and_leaves_out_what_is_not_finite(journal):
    found = series(journal)
    assert list(found) == ["few", "many", "induction"]
    assert found["few"] == {
        "loss": [(5, 1.0), (10, -4.0), (12, -6.0)], "0.0": [(5, 0.4), (10, 0.9), (12, 1.1)],
        "chance": [(5, 0.2), (10, 0.2), (12, 0.2)],
    }  # fmt: skip
    assert len(found["many"]) == 12


def test_watches_become_a_picture_and_nothing_becomes_none(journal, tmp_path, monkeypatch):
    figure, drawn = pytest.importorskip("matplotlib.figure"), []
    make = figure.Figure.__init__
    monkeypatch.setattr(figure.Figure, "__init__", lambda self, **kw: (make(self, **kw), drawn.append(self))[0])
    draw_watches(journal, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    axes = {(each.get_title(loc="left"), each.get_ylabel(), each.get_xlabel()) for each in drawn[0].axes}
    assert axes >= {("few", "loss (nats a token)", "step"), ("few", "few", "step"), ("induction", "", "step")}
    assert ("", "induction score", "") in axes  # of the colours
    few = next(each for each in drawn[0].axes if each.get_ylabel() == "few")
    assert [line.get_label() for line in few.lines] == ["0.0", "chance"]
    draw_watches(tmp_path / "absent.jsonl", tmp_path / "b.png")
    assert not (tmp_path / "b.png").exists()

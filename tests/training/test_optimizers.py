"""Which parameters decay, what each optimiser does in a step, and its state as plain tensors."""

import pytest
import torch

from pellucid.model.config import Config, Init, RMSNorm, SwiGLU
from pellucid.model.rotary import Rotary
from pellucid.model.transformer import Transformer
from pellucid.training.optimizers import Recipe, load_state_tensors, optimizer_of, state_tensors
from pellucid.weights.presets import PRESETS

TINY = Config(vocab_size=11, context_length=8, n_layers=2, d_model=8, n_heads=2, init=Init(0.5))


def tiny(**changes):
    torch.manual_seed(0)
    return Transformer(Config(**{**vars(TINY), **changes}))


def with_gradients(model, seed=1):
    draw = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight.grad = torch.randn(weight.shape, generator=draw)
    return model


def at(optimizer, lr):
    for group in optimizer.param_groups:
        group["lr"] = lr
    return optimizer


def test_trn_5_weight_decay_groups_of_gpt2():
    with torch.device("meta"):
        model = Transformer(PRESETS["gpt2"])
    decayed, others = optimizer_of(model, Recipe(weight_decay=0.1)).param_groups
    assert (len(decayed["params"]), sum(w.numel() for w in decayed["params"])) == (50, 124_318_464)
    assert (len(others["params"]), sum(w.numel() for w in others["params"])) == (98, 121_344)
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert 124_318_464 + 121_344 == 124_439_808


def test_trn_5_weight_decay_leaves_norm_gains_alone():
    model = tiny()
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    at(optimizer_of(model, Recipe(weight_decay=0.1)), 0.1).step()
    for name, weight in model.named_parameters():
        expected = before[name] * (0.99 if weight.ndim == 2 else 1.0)
        assert torch.allclose(weight, expected, atol=1e-7), name
    assert (model.final_norm.weight == 1.0).all()


def test_adamw_is_torchs():
    model, twin = with_gradients(tiny()), with_gradients(tiny())
    optimizer = at(optimizer_of(model, Recipe(beta1=0.8, beta2=0.97, eps=1e-6, weight_decay=0.2)), 0.05)
    groups = [{"params": [weight], "weight_decay": 0.2 if weight.ndim > 1 else 0.0} for weight in twin.parameters()]
    oracle = torch.optim.AdamW(groups, lr=0.05, betas=(0.8, 0.97), eps=1e-6, foreach=False, fused=False)
    for _ in range(3):
        optimizer.step()
        oracle.step()
    for weight, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(weight, other, atol=1e-6)


def test_muon_takes_the_matrices_inside_the_blocks_and_adamw_the_rest():
    shape = {"activation": SwiGLU(), "norm": RMSNorm(), "positions": Rotary(), "tied": False}
    model = tiny(**shape)
    optimizer = optimizer_of(model, Recipe("muon"))
    names = {id(weight): name for name, weight in model.named_parameters()}
    adamw, muon = ([names[id(w)] for group in part.param_groups for w in group["params"]] for part in optimizer.parts)
    matrices = ("attention.qkv", "attention.out", "ffn.gate", "ffn.up", "ffn.down")
    assert sorted(muon) == sorted(f"blocks.{layer}.{name}.weight" for layer in range(2) for name in matrices)
    assert sorted(adamw + muon) == sorted(names.values())


def test_muons_step_is_nearly_orthogonal_and_as_large_as_adamws():
    model = with_gradients(tiny(d_model=32, n_heads=2))
    weight = model.blocks[0].ffn.up.weight
    before = weight.detach().clone()
    at(optimizer_of(model, Recipe("muon", weight_decay=0.0)), 0.1).step()
    update = (before - weight.detach()) / (0.1 * 0.2 * max(weight.shape) ** 0.5)
    singular = torch.linalg.svdvals(update)
    # Jordan's quintic iteration leaves singular values between about 0.7 and 1.2
    assert 0.6 < singular.min() < singular.max() < 1.3


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_step_after_the_state_was_moved_is_the_same_to_the_last_bit(name):
    model, twin = with_gradients(tiny()), with_gradients(tiny())
    optimizer, other = (at(optimizer_of(each, Recipe(name)), 0.1) for each in (model, twin))
    optimizer.step()
    twin.load_state_dict(model.state_dict())
    state = {key: value.clone() for key, value in state_tensors(optimizer, model).items()}
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    load_state_tensors(other, twin, state)
    for each in (model, twin):
        with_gradients(each, seed=2)
    optimizer.step()
    other.step()
    for weight, moved in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(weight, moved)


def test_a_state_of_another_model_is_refused():
    model = with_gradients(tiny())
    optimizer = optimizer_of(model)
    for key, value in {"absent|exp_avg": torch.zeros(3), "final_norm.weight|exp_avg": torch.zeros(3)}.items():
        with pytest.raises(ValueError, match="belongs to no parameter of this run"):
            load_state_tensors(optimizer, model, {key: value})


def test_frozen_parameters_are_left_out():
    model = tiny()
    model.embed.requires_grad_(False)
    names = {id(weight): name for name, weight in model.named_parameters()}
    held = {names[id(w)] for group in optimizer_of(model).param_groups for w in group["params"]}
    assert held == {name for name in names.values() if not name.startswith("embed.")}
    with pytest.raises(ValueError, match="nothing to train"):
        optimizer_of(model.requires_grad_(False))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"name": "sgd"}, "optimizer.name must be 'adamw' or 'muon', got 'sgd'"),
        ({"beta1": 1.0}, r"optimizer.beta1 must lie in \[0, 1\), got 1.0"),
        ({"eps": 0.0}, "optimizer.eps must be above 0"),
        ({"weight_decay": -0.1}, "optimizer.weight_decay must be at least 0"),
    ],
)
def test_wrong_numbers_are_refused(values, said):
    with pytest.raises(ValueError, match=said):
        Recipe(**values)

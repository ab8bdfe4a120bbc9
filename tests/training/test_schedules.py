"""Learning rates, held against Hugging Face's schedules and the papers' formulas."""

import pytest
import torch
import transformers.optimization as theirs
from hypothesis import given
from hypothesis import strategies as st

from pellucid.training.schedules import Constant, Cosine, InverseRoot, Linear, WarmupStableDecay


def theirs_at(make, steps, **settings):
    """Their rates of steps 1 to `steps`: theirs begin with a step of rate 0, which ours leave out."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = make(optimizer, **settings)
    rates = []
    for _ in range(steps):
        optimizer.step()
        schedule.step()
        rates.append(schedule.get_last_lr()[0])
    return rates


def rates(schedule, steps):
    return [schedule(step) for step in range(steps)]


@pytest.mark.parametrize("warmup", [0, 1, 7])
@pytest.mark.parametrize("final", [0.0, 0.25])
def test_the_lines_and_the_cosine_are_hugging_faces(warmup, final):
    settings = {"num_warmup_steps": warmup + 1, "num_training_steps": 31}
    linear = theirs_at(theirs.get_linear_schedule_with_warmup, 30, **settings)
    cosine = theirs_at(
        theirs.get_cosine_with_min_lr_schedule_with_warmup, 30, **settings, min_lr_rate=final, num_cycles=0.5
    )
    assert rates(Cosine(1.0, 30, warmup, final), 30) == pytest.approx(cosine)
    down = [final + (1 - final) * rate if step >= warmup else rate for step, rate in enumerate(linear)]
    assert rates(Linear(1.0, 30, warmup, final), 30) == pytest.approx(down)
    constant = theirs_at(theirs.get_constant_schedule_with_warmup, 30, num_warmup_steps=warmup + 1)
    assert rates(Constant(1.0, warmup), 30) == pytest.approx(constant)


def test_warm_up_stable_decay_is_hugging_faces():
    expected = theirs_at(
        theirs.get_wsd_schedule,
        29,
        num_warmup_steps=5,
        num_decay_steps=10,
        num_stable_steps=15,
        decay_type="linear",
    )
    ours = rates(WarmupStableDecay(1.0, 29, warmup=4, decay=10), 29)
    assert ours == pytest.approx(expected)
    assert ours[4:20] == [1.0] * 16


def test_2017_is_the_papers_formula():
    schedule = InverseRoot(512, 4000)
    for n in (1, 100, 4000, 4001, 100_000):
        assert schedule(n - 1) == pytest.approx(512**-0.5 * min(n**-0.5, n * 4000**-1.5))
    # the base model's peak, 512^-0.5 * 4000^-0.5
    assert max(rates(schedule, 8000)) == schedule(3999) == pytest.approx(6.9877e-4, rel=1e-4)


@given(st.integers(1, 60), st.data())
def test_no_rate_leaves_its_bounds(steps, data):
    warmup = data.draw(st.integers(0, steps))
    decay = data.draw(st.integers(0, steps - warmup))
    for schedule in (Cosine(2.0, steps, warmup, 0.5), Linear(2.0, steps, warmup, 0.5),
                     WarmupStableDecay(2.0, steps, warmup, decay, 0.5)):  # fmt: skip
        found = rates(schedule, steps + 3)
        assert all(0.0 < rate <= 2.0 for rate in found)
        assert found[warmup:] == sorted(found[warmup:], reverse=True)
        assert found[steps] == 0.5


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Cosine(0.0, 10), "the peak learning rate must be above 0"),
        (lambda: Cosine(1.0, 10, 11), "warmup must end within the 10 steps of the run, got 11"),
        (lambda: Linear(1.0, 10, -1), "warmup must be at least 0"),
        (lambda: Linear(1.0, 10, final=2.0), "must not be above the peak"),
        (lambda: WarmupStableDecay(1.0, 10, 5, 6), "decay must leave room"),
        (lambda: InverseRoot(512, 0), "warmup must be a whole number of at least 1"),
        (lambda: Constant(float("nan")), "must be above 0"),
        (lambda: Constant(float("inf")), "the peak learning rate must be above 0 and finite, got inf"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()

"""The record: what it refuses, and what it keeps."""

import math
import pickle

import jaxtyping
import numpy as np
import pytest

from pellucid.generation import Sampling


@pytest.fixture(autouse=True)
def as_installed(monkeypatch):
    """Types are checked in tests only, and would answer before the record does."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": True},
        {"temperature": "1"},
        {"temperature": 10**400},
        {"top_k": -1},
        {"top_k": 1.5},
        {"top_k": True},
        {"top_p": 1.1},
        {"top_p": -0.1},
        {"top_p": math.nan},
        {"top_p": False},
        {"min_p": 2},
        {"min_p": math.nan},
        {"repetition_penalty": 0},
        {"repetition_penalty": -1.0},
        {"repetition_penalty": math.inf},
        {"presence_penalty": math.nan},
        {"frequency_penalty": "a"},
        {"logit_bias": {1: math.nan}},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {"a": 1.0}},
        {"logit_bias": {True: 1.0}},
        {"logit_bias": ((1, 1.0), (1, 2.0))},
        {"logit_bias": (1, 2)},
        {"min_new_tokens": -1},
        {"min_new_tokens": 5, "max_new_tokens": 4},
        {"stop": ("",)},
        {"stop": ""},
        {"stop": (1,)},
        {"stop_ids": (-1,)},
        {"stop_ids": (True,)},
        {"stop_ids": 5},
        {"seed": -1},
        {"seed": 1.0},
        {"seed": True},
        {"seed": (1, None)},
        {"seed": 2**63},
    ],
)
def test_nonsense_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**wrong)


@pytest.mark.parametrize("wrong", [-1, 1.5, "5", True, None])
def test_srv_3_wrong_numbers_of_new_tokens_are_refused(wrong):
    with pytest.raises(ValueError, match="max_new_tokens"):
        Sampling(max_new_tokens=wrong)


def test_srv_3_zero_is_not_the_default():
    assert Sampling(max_new_tokens=0).max_new_tokens == 0
    assert Sampling().max_new_tokens == 128


def test_gen_2_negative_and_nan_temperatures_are_refused():
    for temperature in (-1, -1e-9, math.nan):
        with pytest.raises(ValueError, match="temperature"):
            Sampling(temperature=temperature)


def test_ends_of_ranges_are_accepted():
    ends = Sampling(top_p=0, min_p=1, temperature=1e-320, top_k=10**9, seed=0)
    assert (ends.top_p, ends.min_p, ends.temperature, ends.top_k, ends.seed) == (0, 1, 1e-320, 10**9, 0)
    ends = Sampling(top_p=1e-8, repetition_penalty=1e-3, presence_penalty=-2, min_new_tokens=4, max_new_tokens=4)
    assert (ends.top_p, ends.repetition_penalty, ends.presence_penalty) == (1e-8, 1e-3, -2)
    assert ends.min_new_tokens == ends.max_new_tokens == 4


def test_it_is_plain_frozen_data():
    sampling = Sampling(stop="END", logit_bias={np.int64(3): 1}, temperature=np.float32(0.5), seed=[1, 2])
    assert (sampling.stop, sampling.logit_bias, sampling.seed) == (("END",), ((3, 1.0),), (1, 2))
    assert type(sampling.temperature) is float
    assert pickle.loads(pickle.dumps(sampling)) == sampling
    assert len({sampling, Sampling()}) == 2
    with pytest.raises(AttributeError):
        sampling.seed = 3

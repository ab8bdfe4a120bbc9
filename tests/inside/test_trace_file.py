"""Traces as files: what comes back is what was written, and nothing is believed that was not checked."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from pellucid.inside import edits
from pellucid.inside.errors import EditError, TraceFileError, WeightsChangedError
from pellucid.inside.trace import trace
from pellucid.inside.trace_file import save_trace
from pellucid.inside.trace_opening import load_trace
from tiny import build, configs, random_ids, tiny_gpt2, traced, with_encoder


@pytest.fixture
def saved(tmp_path):
    model = tiny_gpt2()
    path = tmp_path / "a.safetensors"
    save_trace(traced(model, random_ids(2, 5)), path)
    return model, path


@pytest.mark.slow
@given(configs(), st.booleans())
def test_every_site_comes_back(tmp_path_factory, config, padded):
    model, path = build(config), tmp_path_factory.mktemp("trace") / "a.safetensors"
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]]) if padded else None
    run = traced(model, random_ids(2, 5), mask)
    save_trace(run, path)
    again = load_trace(path, model)
    assert again.names == run.names
    for old, new in zip(run.states, again.states, strict=True):
        assert torch.equal(old, new)
    for site in run.names:  # recomputed: kernels may round by where in memory a state lies
        torch.testing.assert_close(again[site], run[site], rtol=1e-12, atol=1e-12)


def test_edits_come_back_and_are_not_made_twice(saved):
    model, path = saved
    run = traced(model, random_ids(2, 5)).edit(
        edits.add("1.stream", torch.ones(32).double(), position=2), edits.zero("0.attention.heads", head=1)
    )
    save_trace(run, path)
    again = load_trace(path, model)
    assert [edit.to_json() for edit in again.edits] == [edit.to_json() for edit in run.edits]
    assert torch.equal(again["logits"], run["logits"])
    assert torch.equal(again["0.attention.heads"], run["0.attention.heads"])
    assert torch.equal(again.edit(edits.zero("1.ffn.update"))["logits"], run.edit(edits.zero("1.ffn.update"))["logits"])
    with pytest.raises(EditError, match="free function"):
        save_trace(run.edit(edits.map_with("1.ffn.update", torch.tanh)), path)
    assert torch.equal(load_trace(path, model)["logits"], run["logits"])  # the file of before is still there


def test_an_encoder_comes_along_with_its_edits(tmp_path):
    model = build(with_encoder(tiny_gpt2().config))
    assert model.encoder is not None
    source = trace(model.encoder, random_ids(1, 6))
    run = trace(model, random_ids(1, 4), source=source).edit(edits.zero("encoder.1.ffn.update", position=2))
    save_trace(run, tmp_path / "a.safetensors")
    again = load_trace(tmp_path / "a.safetensors", model)
    assert len(again.edits) == 1
    for site in ("encoder.1.ffn.update", "decoder.logits"):
        assert torch.equal(again[site], run[site])


def test_a_trace_of_other_weights_or_of_another_model_is_refused(saved):
    model, path = saved
    other = tiny_gpt2(n_layers=1)
    with pytest.raises(TraceFileError, match=r"a.safetensors: the trace is of a model of another shape"):
        load_trace(path, other)
    with torch.no_grad():
        model.blocks[1].ffn.up.weight.add_(1e-3)
    with pytest.raises(WeightsChangedError, match=r"1.ffn"):
        load_trace(path, model)


def _changed(path, tensors=None, about=None):
    held = load_file(path)
    with safe_open(path, framework="pt") as file:
        said = json.loads(file.metadata()["pellucid"])
    for name, tensor in (tensors or {}).items():
        if tensor is None:
            del held[name]
        else:
            held[name] = tensor
    for name, value in (about or {}).items():
        (said if name in said else said["sides"][0])[name] = value
    save_file(held, path, {"pellucid": json.dumps(said)})


@pytest.mark.parametrize(
    ("tensors", "about", "message"),
    [
        ({"0.ids": torch.full((2, 5), 50)}, {}, "ids must lie in 0..49, got 50"),
        ({"0.ids": torch.zeros(2, 5)}, {}, "whole numbers"),
        ({"0.ids": torch.zeros(5).long()}, {}, "batch x positions"),
        ({"0.ids": None}, {}, "it lacks 'ids'"),
        ({"0.state.2": None}, {}, "it lacks 'state.2'"),
        ({"0.state.2": torch.zeros(2, 4, 32)}, {}, r"each state must hold numbers of shape \[2, 5, 32\]"),
        ({"0.state.2": torch.full((2, 5, 32), torch.nan)}, {}, "not a number"),
        ({"0.mask": torch.zeros(2, 5).long()}, {}, "holds no token"),
        ({"0.mask": torch.ones(2, 4).long()}, {}, "ids' shape"),
        ({"0.types": torch.zeros(2, 4).long()}, {}, "types must be"),
        ({"0.print.final": None}, {}, "it lacks 'print.final'"),
        ({}, {"schema": "pellucid trace 9"}, "expected a file with the schema"),
        ({}, {"sides": []}, "one side"),
        ({}, {"sides": [1]}, "one side"),
        ({}, {"length": 0}, "length must be a whole number of at least 1, got 0"),
        ({}, {"length": "long"}, "length must be"),
        ({}, {"config": {"n_layers": 2}}, "config lacks"),
        ({}, {"edits": [{"kind": "explode", "site": "1.stream"}]}, "edit 0: kind must be one of"),
        ({}, {"edits": [{"kind": "zero", "site": "9.stream"}]}, "the last layer is 1"),
        ({}, {"precision": {"device": "cpu", "autocast": False, "dtype": "int8"}}, "its precision"),
    ],
)
def test_what_a_file_says_is_checked(saved, tensors, about, message):
    model, path = saved
    _changed(path, tensors, about)
    with pytest.raises(ValueError, match=message):
        load_trace(path, model)


def test_files_that_hold_no_trace(tmp_path):
    model, path = tiny_gpt2(), tmp_path / "a.safetensors"
    with pytest.raises(TraceFileError, match="there is none"):
        load_trace(path, model)
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(TraceFileError, match="not a sound safetensors file"):
        load_trace(path, model)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(TraceFileError, match="expected a file with the schema"):
        load_trace(path, model)
    with pytest.raises(ValueError, match="its folder does not exist"):
        save_trace(traced(model, random_ids(1, 3)), tmp_path / "nowhere" / "a.safetensors")

"""The whole pass stage by stage: every number is what the run says at its site."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.inside import edits as edit
from pellucid.inside.reading import all_sites
from pellucid.inside.shown.passing import pass_stages
from pellucid.model.config import (
    Bidirectional,
    Causal,
    Config,
    Gelu,
    Init,
    LayerNorm,
    MaskedLanguage,
    Parallel,
    PostNorm,
    RMSNorm,
    SwiGLU,
    Window,
)  # fmt: skip
from pellucid.model.rotary import Rotary
from tiny import VOCAB, build, configs, random_ids, traced, with_encoder

GPT2 = Config(VOCAB, 32, n_layers=2, d_model=12, n_heads=3, init=Init(0.4))
FORMS = {
    "gpt2": GPT2,
    "llama": replace(GPT2, positions=Rotary(), norm=RMSNorm(), activation=SwiGLU(), n_kv_heads=1, tied=False),
    "mistral": replace(GPT2, positions=Rotary(), masks=(Window(3), Causal())),
    "pythia": replace(GPT2, positions=Rotary(fraction=0.5), block=Parallel(2)),
    "palm": replace(GPT2, positions=Rotary(), block=Parallel(1), norm=LayerNorm(bias=False)),
    "bert": replace(
        GPT2,
        block=PostNorm(),
        masks=(Bidirectional(),),
        activation=Gelu(),
        head=MaskedLanguage(),
        n_token_types=2,
        embedding_norm=True,
        pooler=True,
        next_sentence=True,
    ),
    "transformer": with_encoder(replace(GPT2, block=PostNorm())),
    "without a head": replace(GPT2, head=None),
}


def whole(run, position=-1, most=4096, side=""):
    """All stages of all layers."""
    layers = (run.source if side else run).transformer.config.n_layers
    answers = [pass_stages(run, layer, position, most, side) for layer in range(-1, layers + 1)]
    return [stage for answer in answers for stage in answer["stages"]]


def at(run, site, column):
    """What the run says, flat, by another way than the stages go."""
    value = run[site.name][0]
    return (value.movedim(site.axes.index("T") - 1, 0)[column] if "T" in site.axes else value).flatten()


def agree(run, shown, column):
    owned = [site for site in all_sites(run.transformer) if site.name.startswith((run.transformer.prefix, "head", "p"))]
    kept = [stage for stage in shown if not stage["site"].endswith(".mask")]
    assert [stage["site"] for stage in kept] == [site.name for site in owned]
    for stage, site in zip(kept, owned, strict=True):
        value, numbers = at(run, site, column), [-math.inf if number is None else number for number in stage["values"]]
        if "ids" in stage:  # of this token alone, which may round otherwise than all tokens together
            assert numbers == pytest.approx(value[stage["ids"]].tolist(), rel=1e-11, abs=1e-11)
            continue
        assert numbers == value.tolist(), site.name
        assert stage["shape"] == list(run[site.name].shape)
        assert math.prod(stage["at"]) == stage["of"]
        assert (stage["symbol"], stage["formula"]) == (site.symbol, site.formula)
        assert stage["what"].endswith(".")
        assert stage["name"]


@pytest.mark.parametrize("form", FORMS)
def test_every_stage_of_every_form_is_what_the_run_says(form):
    run = traced(build(FORMS[form]), random_ids(1, 5))
    agree(run, whole(run, position=3), 3)
    if run.source is not None:
        agree(run.source, whole(run, position=2, side="encoder"), 2)


@given(configs(), st.integers(0, 4))
@settings(max_examples=12)
def test_every_stage_of_any_model_is_what_the_run_says(config, position):
    run = traced(build(config), random_ids(1, 5))
    agree(run, whole(run, position), position)


@pytest.mark.parametrize("form", FORMS)
def test_edits_are_in_what_is_shown(form):
    run = traced(build(FORMS[form]), random_ids(1, 5))
    prefix = run.transformer.prefix
    changes = [
        edit.zero(f"{prefix}0.attention.heads", head=1),
        edit.knockout(f"{prefix}1.attention.scores", key=0, position=4),
        edit.add(f"{prefix}1.ffn.update", 0.5, position=2),
        edit.scale(f"{prefix}0.stream", 1.5),
    ]
    edited = run.edit(*changes)
    shown = whole(edited)
    agree(edited, shown, 4)
    assert [stage["values"] for stage in shown] != [stage["values"] for stage in whole(run)]


def test_norms_are_euclidean_and_leave_out_what_is_hidden():
    run = traced(build(FORMS["gpt2"]), random_ids(1, 5))
    for stage in whole(run, position=2):
        if "ids" not in stage and not stage["site"].endswith(".mask"):
            seen = [number for number in stage["values"] if number is not None]
            assert stage["norm"] == pytest.approx(math.hypot(*seen), rel=1e-12)
    (scores,) = [stage for stage in whole(run, position=2) if stage["site"] == "1.attention.scores"]
    assert scores["axes"] == ["H", "S"]
    assert [scores["values"][3 * 5 + s] is None for s in range(-5, 0)] == [False, False, False, True, True]


def test_logits_are_those_of_the_most_probable_tokens():
    run = traced(build(FORMS["gpt2"]), random_ids(1, 5))
    logits = pass_stages(run, layer=2, position=1, most=7)["stages"][-1]
    row = run["logits"][0, 1]
    assert logits["ids"] == row.topk(7).indices.tolist()
    assert logits["values"] == pytest.approx(row.topk(7).values.tolist(), rel=1e-12)
    assert logits["probabilities"] == pytest.approx(row.softmax(-1).topk(7).values.tolist(), rel=1e-12)
    assert logits["labels"] == [str(token) for token in logits["ids"]]
    assert (logits["of"], logits["norm"]) == (VOCAB, pytest.approx(float(row.norm()), rel=1e-12))


def test_a_mask_stands_between_scores_and_pattern():
    for form, seen in {"gpt2": 4, "mistral": 3, "bert": 6}.items():
        run = traced(build(FORMS[form]), random_ids(1, 6))
        stages = pass_stages(run, layer=0, position=3)["stages"]
        names = [stage["site"] for stage in stages]
        where = names.index("0.attention.mask")
        assert names[where - 1 : where + 2 : 2] == ["0.attention.scores", "0.attention.pattern"]
        hidden = [float(number or 0) for number in stages[where + 1]["values"][:6]]
        assert [number is None for number in stages[where]["values"]] == [share == 0 for share in hidden]
        assert stages[where]["values"].count(0.0) == seen


def test_at_most_as_many_values_as_are_asked_for():
    run = traced(build(FORMS["gpt2"]), random_ids(1, 5))
    for stage in pass_stages(run, layer=0, most=4)["stages"]:
        most = 5 if stage["site"].endswith(".mask") else 4
        assert len(stage["values"]) == min(most, stage["of"])
    long = {stage["site"]: stage for stage in pass_stages(run, layer=0, most=4096)["stages"]}
    short = {stage["site"]: stage for stage in pass_stages(run, layer=0, most=4)["stages"]}
    assert all(long[site]["values"][: len(stage["values"])] == stage["values"] for site, stage in short.items())


def test_numbers_of_32_bits_come_back_as_they_were():
    run = traced(build(FORMS["gpt2"], dtype=torch.float32), random_ids(1, 5))
    (stream,) = [stage for stage in whole(run) if stage["site"] == "1.stream"]
    assert torch.equal(torch.tensor(stream["values"], dtype=torch.float32), run["1.stream"][0, -1])


def test_padding_is_left_out():
    mask = torch.tensor([[0, 0, 1, 1, 1]])
    run = traced(build(FORMS["gpt2"]), random_ids(1, 5), mask)
    answer = pass_stages(run, layer=1, position=0)
    assert (answer["position"], answer["token"]) == (0, run.tokens()[0])
    assert answer["stages"][0]["values"] == run["1.stream"][0, 2].tolist()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"layer": 3}, r"layer must lie in -1 \(the embedding\)\.\.2 \(the ending\), got 3"),
        ({"layer": -2}, "got -2"),
        ({"position": 5}, r"positions 0\.\.4, got position=5"),
        ({"most": 0}, r"most must lie in 1\.\.4096 \(values of one stage\), got 0"),
        ({"most": 5000}, "got 5000"),
        ({"side": "encoder"}, "this model has no encoder"),
        ({"side": "x"}, "got side='x'"),
    ],
)
def test_what_is_not_there_is_refused(asked, said):
    run = traced(build(FORMS["gpt2"]), random_ids(1, 5))
    with pytest.raises(ValueError, match=said):
        pass_stages(run, **asked)

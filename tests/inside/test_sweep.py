"""Sweeps: every value is that of the edited trace, whatever the model, the site, the padding and the memory."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiny import build, configs, random_ids, tiny_gpt2, traced, with_encoder

from pellucid.inside.circuit_by_hand import INDUCTION, PREVIOUS, START, induction_circuit
from pellucid.inside.edits import add, knockout, map_with, noise, patch, scale, set_to, zero
from pellucid.inside.errors import EditError, SiteError, WeightsChangedError
from pellucid.inside.metrics import Metric, divergence, log_probability, logit
from pellucid.inside.reading import all_sites
from pellucid.inside.sweep import sweep, sweep_edits
from pellucid.inside.sweep_work import SweepOptions
from pellucid.inside.trace import trace
from pellucid.model.config import Bidirectional, MaskedLanguage, Parallel, PostNorm, Window

LEFT = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
RIGHT = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])


def pair(model, mask=None):
    """Two traces of two rows; the second trace's rows begin as the first's do."""
    base = random_ids(2, 6, seed=1)
    other = random_ids(2, 6, seed=2)
    other[:, :3] = base[:, :3]
    return traced(model, base, mask), traced(model, other, mask)


def raw(**options):
    return SweepOptions(normalised=False, **options)


def size_of(run):
    """The scale of a run's logits."""
    return float(run[f"{run.transformer.prefix}logits"].abs().max())


def one_by_one(base, source, effects, metric, row=0, source_row=0):
    """The same grid by the edited trace itself, one edit after another."""
    values = torch.full_like(effects.values, math.nan)
    for at, name in enumerate(effects.rows):
        site, _, head = name.partition(" ")
        word = "head" if "H" in next(each for each in all_sites_of(base) if each.name == site).axes else "kv_head"
        for column, label in enumerate(effects.columns):
            where = {word: int(head)} if head else {}
            where |= {word: int(label)} if effects.names[1] == "head" else {}
            where |= {"position": column} if effects.names[1] == "position" else {}
            edited = base.edit(patch(site, source, source_row, **where))
            values[at, column] = metric.of(edited)[row]
    return values


def all_sites_of(run):
    return all_sites(run.transformer)


@st.composite
def questions(draw):
    """A config, one of its sites with positions, and a way to go over it."""
    config = draw(configs())
    found = [site for site in all_sites(build(config)) if "T" in site.axes and "next_sentence" not in site.name]
    site = draw(st.sampled_from(found))
    has_heads = {"H", "G"} & set(site.axes)
    each = draw(st.sampled_from(["position", "site", *(["head", "head,position"] if has_heads else [])]))
    return config, site.name, each


@pytest.mark.slow
@settings(max_examples=20)
@given(questions(), st.sampled_from([None, LEFT, RIGHT]), st.booleans(), st.sampled_from([-1, 1]))
def test_a_sweep_is_the_edited_trace_at_every_place(question, mask, skip, position):
    config, site, each = question
    base, source = pair(build(config), mask)
    metric = logit(3, minus=5, position=position)
    found = sweep(base, source, site, metric=metric, each=each, options=raw(row=1, source_row=1, skip=skip))
    expected = one_by_one(base, source, found, metric, row=1, source_row=1)
    size = size_of(base)
    assert torch.allclose(found.values, expected, rtol=0, atol=1e-12 * max(1.0, size))


@pytest.mark.parametrize("mask", [LEFT, RIGHT])
def test_a_patched_pattern_gives_padding_no_weight(mask):
    base, source = pair(tiny_gpt2(), mask)
    for run in (base.edit(patch("1.attention.pattern", source, 1)), base.edit(patch("1.attention.scores", source, 1))):
        assert torch.equal(run.by_position("1.attention.pattern", 1), source.by_position("1.attention.pattern", 1))
        assert torch.allclose(run["1.attention.pattern"].sum(-1)[1, :, mask[1].bool()], torch.ones(4, 4).double())


@pytest.mark.parametrize("mask", [LEFT, RIGHT])
def test_an_edited_pattern_gives_padding_no_weight(mask):
    base = pair(tiny_gpt2(), mask)[0]
    for edit in (add("1.attention.pattern", 0.5), set_to("1.attention.pattern", 0.5, head=2)):
        pattern = base.edit(edit)["1.attention.pattern"][1]
        assert bool((pattern[2][mask[1].bool()][:, mask[1].bool()] >= 0.5).all())
        assert bool((pattern[..., ~mask[1].bool()] == 0.0).all())


@pytest.mark.slow
@settings(max_examples=8)
@given(configs("causal"), st.sampled_from(["*.stream", "*.attention.heads", "*.ffn.update"]))
def test_a_sweep_in_fp32_is_the_edited_trace_within_rounding(config, sites):
    base, source = pair(build(config, dtype=torch.float32), RIGHT)
    sites = sites if config.encoder is None else f"decoder.{sites}"
    metric = logit(3)
    found = sweep(base, source, sites, metric=metric, options=raw(row=1, source_row=1, skip=False))
    expected = one_by_one(base, source, found, metric, row=1, source_row=1)
    size = size_of(base)
    assert torch.allclose(found.values, expected, rtol=0, atol=5e-6 * max(1.0, size))


@st.composite
def lists_of_edits(draw):
    """A config, edits that its traces have already, and edits to try: single ones, and groups of two."""
    config = draw(configs())
    found = [site for site in all_sites(build(config)) if "T" in site.axes and "next_sentence" not in site.name]
    names = st.sampled_from([site.name for site in found])
    alone = st.sampled_from([site.name for site in found if "S" not in site.axes])  # a key's noise depends on how many
    scores = st.sampled_from([site.name for site in found if site.name.endswith(".scores")])
    at = st.integers(0, 4)
    single = st.one_of(
        st.builds(lambda site, position: zero(site, position=position), names, at),
        st.builds(lambda site, position: add(site, 0.5, position=position), names, at),
        st.builds(lambda site, position: scale(site, 1.5, position=position), names, at),
        st.builds(lambda site: noise(site, 0.3), alone),
        st.builds(lambda site: scale(site, 1.0), names),
        st.builds(lambda site, position: map_with(site, torch.tanh, position=position), names, at),
        st.builds(lambda site: map_with(site, torch.tanh, whole=True), names),
        st.builds(lambda site, key, position: knockout(site, key, position=position), scores, at, at),
    )
    before = draw(st.sampled_from([(), (scale(found[0].name, 0.5, position=1),), (add(draw(names), 0.25),)]))
    return config, before, draw(st.lists(st.one_of(single, st.tuples(single, single)), min_size=1, max_size=4))


@pytest.mark.slow
@settings(max_examples=20)
@given(lists_of_edits(), st.sampled_from([None, LEFT, RIGHT]), st.booleans(), st.sampled_from([1, 10**9]))
def test_any_edits_in_one_sweep_are_those_edits_one_after_another(question, mask, skip, memory):
    config, before, edits = question
    base = pair(build(config), mask)[0].edit(*before)
    metric = log_probability(4, position=2)
    try:
        groups = [each if isinstance(each, tuple) else (each,) for each in edits]
        expected = [metric.of(base.edit(*group))[1] for group in groups]
    except EditError as error:  # two of them on the same numbers
        with pytest.raises(EditError, match=str(error)[:30]):
            sweep_edits(base, edits, metric, SweepOptions(row=1, skip=skip, memory=memory))
        return
    found = sweep_edits(base, edits, metric, SweepOptions(row=1, skip=skip, memory=memory))
    assert torch.allclose(found, torch.stack(expected), rtol=1e-11, atol=1e-11, equal_nan=True)


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"block": PostNorm()}, {"block": Parallel(1)}, {"n_kv_heads": 2}, {"masks": (Window(2),)},
        {"masks": (Bidirectional(),), "head": MaskedLanguage()},
    ],
)  # fmt: skip
def test_the_memory_moves_results_by_rounding_only(changes):
    base, source = pair(tiny_gpt2(**changes))
    metric = Metric("two positions", lambda logits, ids: logits[:, 0, 3] - logits[:, 1, 7].tanh(), (4, 2))
    passes: list[int] = []
    values = []
    for memory in (1, 100_000, 10**9):
        told: list[tuple[int, int]] = []
        options = raw(skip=False, memory=memory, progress=lambda *numbers, told=told: told.append(numbers))
        values.append(sweep(base, source, metric=metric, options=options).values)
        assert told[-1] == (18, 18)
        passes.append(len(told))
    assert passes[0] == 18
    assert passes[0] > passes[1] > passes[2] == 1
    assert torch.allclose(values[0], values[2], rtol=1e-12, atol=1e-13)
    assert torch.allclose(values[1], values[2], rtol=1e-12, atol=1e-13)


def test_int_3_patching_in_a_sweep():
    model = tiny_gpt2()
    clean, corrupt = trace(model, torch.tensor([[1, 2, 3, 4]])), trace(model, torch.tensor([[1, 9, 3, 4]]))
    metric = logit(7)
    before, after = float(metric.of(corrupt)), float(metric.of(clean))
    itself = sweep(corrupt, corrupt, metric=metric, options=raw())
    assert set(itself.values.flatten().tolist()) == {before}
    run = sweep(corrupt, corrupt, metric=metric, options=raw(skip=False)).values
    assert torch.allclose(run, torch.full_like(run, before), rtol=1e-12)  # not by a shortcut: every edit is run
    found = sweep(corrupt, clean, metric=metric, options=raw()).values
    assert found[2].tolist() == [before, before, before, after]
    assert found[0, 0] == before
    assert found[0, 1] != before
    assert all(abs(value - before) > 1e-6 for value in found[1, 1:].tolist())  # after layer 0, positions 1 to 3
    assert found[1, 0] == before
    effects = sweep(corrupt, clean, metric=metric)
    assert effects.values[2].tolist() == [0.0, 0.0, 0.0, 1.0]
    assert (effects.base, effects.source) == (before, after)
    assert effects.columns == ("0 1", "1 9", "2 3", "3 4")


def test_the_whole_stream_of_any_layer_has_all_of_the_effect():
    base, source = pair(tiny_gpt2())
    found = sweep(base, source, metric=logit(3, minus=4), each="site", options=SweepOptions(skip=False))
    assert found.columns == ("all",)
    assert torch.allclose(found.values, torch.ones(3, 1).double(), rtol=1e-12)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_patch_leaves_what_comes_before_it_as_it_was(position):
    base, source = trace(tiny_gpt2(), random_ids(1, 6, 1)), trace(tiny_gpt2(), random_ids(1, 6, 2))
    metric = logit(3, position=position)
    here = float(metric.of(base))
    found = sweep(base, source, metric=metric, options=raw()).values[:, position + 1 :]
    assert bool((found == here).all())
    run = sweep(base, source, metric=metric, options=raw(skip=False)).values[:, position + 1 :]
    assert torch.allclose(run, found, rtol=1e-12)


def test_a_window_reaches_only_so_far():
    base, source = pair(tiny_gpt2(masks=(Window(2),)))
    metric, told = logit(3), []
    options = raw(progress=lambda *numbers: told.append(numbers))
    found = sweep(base, source, metric=metric, options=options)
    assert set(found.values[1, :4].tolist()) == {float(metric.of(base)[0])}
    assert told == [(18, 18)]
    assert torch.allclose(found.values, one_by_one(base, source, found, metric), rtol=1e-12)


def test_what_changes_nothing_or_reaches_nothing_is_answered_without_a_run():
    base, source = pair(tiny_gpt2())
    told: list[object] = []
    options = raw(progress=lambda *numbers: told.append(numbers))
    same = sweep(base, base, "*.attention.heads", metric=logit(3), options=options).values
    early = sweep(base, source, "*.stream", metric=logit(3, position=2), options=options).values
    assert told == []
    assert set(same.flatten().tolist()) == {float(logit(3).of(base)[0])}
    assert set(early.flatten().tolist()) == {float(logit(3, position=2).of(base)[0])}
    sweep(base, base, "*.attention.heads", metric=logit(3), options=raw(skip=False, progress=options.progress))
    assert told == [(8, 8)]


def test_the_circuit_by_hand_is_found():
    model = induction_circuit()
    clean = trace(model, torch.tensor([[START, 5, 9, 7, 3, 5]]))
    corrupted = trace(model, torch.tensor([[START, 11, 9, 7, 3, 5]]))
    by_head = sweep(corrupted, clean, "*.attention.heads", metric=logit(9))
    expected = torch.zeros(2, 2).double()
    expected[PREVIOUS], expected[INDUCTION] = 1.0, 1.0
    assert torch.allclose(by_head.values, expected, atol=1e-5)
    where = sweep(corrupted, clean, "*.attention.heads", metric=logit(9), each="head,position")
    strongest = {row[:2] for row in where.top(2)}
    assert strongest == {("0.attention.heads 1", "2 9"), ("1.attention.heads 0", "5 5")}
    stream = sweep(corrupted, clean, metric=logit(9)).values.round().tolist()
    assert stream == [[0, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1]]


def test_sites_of_an_encoder_are_swept_by_its_own_positions():
    model = build(with_encoder(tiny_gpt2().config))
    ids = random_ids(1, 4)
    base, source = (
        trace(model, ids, source=trace(model.encoder, random_ids(1, length, seed))) for length, seed in ((6, 3), (6, 4))
    )
    found = sweep(base, source, "encoder.*.stream", metric=logit(3))
    assert found.values.shape == (3, 6)
    whole = sweep(base, source, "encoder.2.stream", metric=logit(3), each="site")
    assert whole.values.tolist() == [[pytest.approx(1.0)]]
    with pytest.raises(SiteError, match="of the encoder and of the decoder"):
        sweep(base, source, "*", metric=logit(3), each="site")
    longer = trace(model, ids, source=trace(model.encoder, random_ids(1, 7, 4)))
    sweep(base, longer, "decoder.*.stream", metric=logit(3))
    with pytest.raises(ValueError, match="got 6 and 7"):
        sweep(base, longer, "encoder.*.stream", metric=logit(3))


class StoppedError(Exception):
    """What stands for an interruption."""


def test_an_interrupted_sweep_goes_on(tmp_path):
    base, source = pair(tiny_gpt2())
    folder, metric = tmp_path / "sweep", logit(3)
    whole = sweep(base, source, metric=metric).values
    told: list[tuple[int, int]] = []

    def stop(*numbers: int) -> None:
        told.append(numbers)
        if len(told) == 4:
            raise StoppedError

    few = SweepOptions(memory=1, skip=False, folder=folder, progress=stop)
    with pytest.raises(StoppedError):
        sweep(base, source, metric=metric, options=few)
    assert told == [(1, 18), (2, 18), (3, 18), (4, 18)]
    told.clear()
    again = SweepOptions(memory=1, skip=False, folder=folder, progress=lambda *numbers: told.append(numbers))
    assert torch.allclose(sweep(base, source, metric=metric, options=again).values, whole, rtol=1e-9, atol=1e-12)
    assert told[0] == (5, 18)
    told.clear()
    assert torch.allclose(sweep(base, source, metric=metric, options=again).values, whole, rtol=1e-9, atol=1e-12)
    assert told == []
    assert [path.name for path in folder.iterdir()] == ["sweep.json"]


def test_a_folder_of_another_sweep_is_refused(tmp_path):
    base, source = pair(tiny_gpt2())
    here = SweepOptions(folder=tmp_path)
    sweep(base, source, metric=logit(3), options=here)
    others = [
        lambda: sweep(base, source, metric=logit(4), options=here),
        lambda: sweep(base, source, "*.ffn.update", metric=logit(3), options=here),
        lambda: sweep(source, base, metric=logit(3), options=here),
        lambda: sweep(base, pair(tiny_gpt2())[0].edit(zero("1.stream")), metric=logit(3), options=here),
        lambda: sweep(base, source, metric=Metric(logit(3).name, lambda z, ids: z[:, 0, 4], (-1,), (3,)), options=here),
        lambda: sweep_edits(base, [zero("1.stream")], logit(3), here),
    ]
    for other in others:
        with pytest.raises(ValueError, match="holds another sweep"):
            other()
    with pytest.raises(ValueError, match="kept in a folder"):
        sweep(base, source, metric=logit(3), options=SweepOptions(folder=tmp_path / "sweep.json"))
    (tmp_path / "sweep.json").write_text("[]")
    with pytest.raises(ValueError, match="is no file of a sweep"):
        sweep(base, source, metric=logit(3), options=here)


def test_edits_are_kept_in_a_folder_by_what_they_are(tmp_path):
    base, _ = pair(tiny_gpt2())
    here, edits = SweepOptions(folder=tmp_path), [zero("1.stream", position=2), set_to("0.ffn.update", torch.ones(32))]
    first = sweep_edits(base, edits, logit(3), here)
    assert torch.equal(sweep_edits(base, edits, logit(3), here), first)
    with pytest.raises(ValueError, match="holds another sweep"):
        sweep_edits(base, edits[:1], logit(3), here)


def test_what_cannot_be_swept_says_why():
    model = tiny_gpt2()
    base, source = pair(model)
    longer = traced(model, random_ids(1, 7, 2))
    with pytest.raises(ValueError, match=r"as many tokens.*got 6 and 7, which first differ at position 0"):
        sweep(base, longer, metric=logit(3))
    with pytest.raises(ValueError, match=r"in both runs.*normalised=False"):
        sweep(base, base, metric=logit(3))
    with pytest.raises(ValueError, match="in both runs"):
        sweep(base, source, metric=logit(3, position=1))
    with pytest.raises(ValueError, match="over each 'position', 'head', 'head,position', 'site', got 'neuron'"):
        sweep(base, source, metric=logit(3), each="neuron")
    with pytest.raises(SiteError, match=r"0.stream has no heads"):
        sweep(base, source, metric=logit(3), each="head")
    with pytest.raises(SiteError, match="no site fits"):
        sweep(base, source, "*.strem", metric=logit(3))
    with pytest.raises(ValueError, match=r"rows 0\.\.1, got row=2"):
        sweep(base, source, metric=logit(3), options=SweepOptions(row=2))
    with pytest.raises(ValueError, match="memory=0"):
        SweepOptions(memory=0)
    with pytest.raises(EditError, match="head must lie in"):
        sweep_edits(base, [zero("0.attention.heads", head=9)], logit(3))


def test_weights_that_changed_are_noticed():
    model = tiny_gpt2()
    base, source = pair(model)
    metric = divergence(source)
    sweep(base, source, metric=metric)
    with torch.no_grad():
        dict(model.named_parameters())["blocks.1.ffn.up.weight"].mul_(2.0)
    with pytest.raises(WeightsChangedError):
        sweep_edits(base, [zero("1.stream")], metric)

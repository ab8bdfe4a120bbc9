"""Objectives: which positions are targets, what the loss of them is, and runs that stop and go on."""

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import pellucid
import tiny
from pellucid.model.config import Bidirectional, MaskedLanguage
from pellucid.training import cross_entropy
from pellucid.training.batch import NO_TARGET, Batch
from pellucid.training.checkpoints import checkpoints as saved
from pellucid.training.journal import read_journal
from pellucid.training.masked import Masking
from pellucid.training.objectives import Targets, next_token
from pellucid.training.run import Run
from pellucid.training.settings import read_run
from pellucid.weights.safetensors_file import open_safetensors


def batch_for(config, seed=0):
    """A padded batch of which a third has no target."""
    ids, draw = tiny.random_ids(3, 7, seed), torch.Generator().manual_seed(seed)
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[1, 5:] = mask[2, 3:] = False
    targets = torch.where((torch.rand(3, 7, generator=draw) < 0.7) & mask, tiny.random_ids(3, 7, seed + 1), NO_TARGET)
    extra = tiny.arguments(config, 3, 7)
    source_mask = mask.flip(0) if config.encoder is not None else None
    return Batch(ids, targets, mask, extra.get("types"), extra.get("source"), source_mask)


def plain_loss(model, batch, smoothing=0.0):
    extra = {"types": batch.types, "source": batch.source, "source_mask": batch.source_mask}
    logits = model(batch.ids, batch.mask, **extra).flatten(0, 1)
    return F.cross_entropy(
        logits, batch.targets.flatten(), ignore_index=NO_TARGET, reduction="sum", label_smoothing=smoothing
    )


@settings(max_examples=25)
@given(tiny.configs(), st.sampled_from([0.0, 0.1]), st.booleans())
def test_the_loss_is_torchs_over_whole_logits(config, smoothing, tiles):
    model, batch = tiny.build(config).requires_grad_(True).train(), batch_for(config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_entropy.cross_entropy, "__defaults__", (0.0, 1 if tiles else 1 << 30))
        loss, count = Targets(smoothing)(model, batch)
    expected = plain_loss(model, batch, smoothing)
    assert count == int((batch.targets != NO_TARGET).sum())
    assert loss.item() == pytest.approx(expected.item(), rel=1e-11)
    weights = list(model.parameters())
    ours = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
    theirs = torch.autograd.grad(expected, weights, allow_unused=True, materialize_grads=True)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-11)


def test_labels_are_smoothed_only_while_the_model_trains():
    model, batch = tiny.tiny_gpt2(), batch_for(tiny.tiny_gpt2().config)
    assert Targets(0.2)(model.eval(), batch)[0].item() == pytest.approx(plain_loss(model, batch).item())
    assert Targets(0.2)(model.train(), batch)[0].item() == pytest.approx(plain_loss(model, batch, 0.2).item())
    with pytest.raises(ValueError, match="smoothing must lie in"):
        Targets(1.0)


def test_logits_are_made_for_targets_only():
    model, batch = tiny.tiny_gpt2(head=MaskedLanguage()), batch_for(tiny.tiny_gpt2().config)
    seen = []
    model.head.register_forward_hook(lambda module, given, made: seen.append(made.shape))
    _, count = next_token(model, batch)
    assert seen == [(1, count, 32)]
    assert count < batch.ids.numel()


def test_trn_2_a_batch_without_targets_adds_nothing():
    model = tiny.tiny_gpt2().requires_grad_(True)
    ids = tiny.random_ids(3, 5)
    loss, count = next_token(model, Batch(ids, torch.full_like(ids, NO_TARGET)))
    assert (loss.item(), count) == (0.0, 0)
    loss.backward()
    assert all(weight.grad is None or weight.grad.abs().max() == 0 for weight in model.parameters())


def test_trn_1_rows_add_up_to_the_batch():
    """Rows of 10 and of 100 targets: each target weighs 1/110."""
    model = tiny.tiny_gpt2(context_length=101).requires_grad_(True)
    ids, mask = tiny.random_ids(2, 101), torch.ones(2, 101, dtype=torch.bool)
    mask[0, 11:] = False
    targets = torch.where(mask.roll(-1, 1) & mask, ids.roll(-1, 1), NO_TARGET)
    targets[1, -1] = NO_TARGET
    batch = Batch(ids, targets, mask)
    loss, count = next_token(model, batch)
    assert count == 110
    whole = torch.autograd.grad(loss / count, list(model.parameters()))
    parts = [next_token(model, batch.rows(row, row + 1)) for row in range(2)]
    assert [number for _, number in parts] == [10, 100]
    summed = torch.autograd.grad(sum(part for part, _ in parts) / 110, list(model.parameters()))
    assert all(torch.allclose(*pair, rtol=1e-11, atol=1e-13) for pair in zip(whole, summed, strict=True))


# --- Masked language ---


def test_fifteen_in_a_hundred_are_hidden_and_of_those_eighty_ten_ten():
    words, rows = tuple(range(5, 1000)), 400
    masking = Masking(3, words, seed=1)
    ids = torch.randint(0, 1000, (rows, 100), generator=torch.Generator().manual_seed(0))
    hidden = masking.hide(Batch(ids, ids.clone()), (0,))
    chosen = hidden.targets != NO_TARGET
    assert torch.equal(hidden.targets[chosen], ids[chosen])
    assert torch.equal(hidden.ids[~chosen], ids[~chosen])
    assert not chosen[ids < 5].any()
    count = int(chosen.sum())
    # 39,800 words: a standard deviation of the share is 0.0018; of its parts, of 6,000, at most 0.0052
    assert count / int((ids >= 5).sum()) == pytest.approx(0.15, abs=0.008)
    masked = (hidden.ids == 3) & chosen
    same = (hidden.ids == ids) & chosen
    assert int(masked.sum()) / count == pytest.approx(0.8, abs=0.022)
    assert int(same.sum()) / count == pytest.approx(0.1, abs=0.017)
    other = hidden.ids[chosen & ~masked & ~same]
    assert int(other.min()) >= 5
    assert len(other.unique()) > 300


def test_what_is_hidden_depends_on_seed_and_step_alone():
    batch = Batch(tiny.random_ids(4, 20), tiny.random_ids(4, 20))
    one, other = Masking(0, tuple(range(2, 50)), 1), Masking(0, tuple(range(2, 50)), 2)
    reader = one.reader(lambda step: batch)
    assert torch.equal(reader(5).ids, one.reader(lambda step: batch)(5).ids)
    assert not torch.equal(reader(5).ids, reader(6).ids)
    assert not torch.equal(reader(5).ids, other.reader(lambda step: batch)(5).ids)
    held = one.held_back([lambda: batch])[0]
    assert torch.equal(held().ids, held().ids)
    assert torch.equal(batch.ids, tiny.random_ids(4, 20))


def test_padding_is_never_a_target():
    ids, mask = tiny.random_ids(2, 60), torch.ones(2, 60, dtype=torch.int64)
    mask[1, 10:] = 0
    batch = Batch(ids, torch.where(mask > 0, ids, NO_TARGET), mask)
    for step in range(30):
        assert (Masking(0, tuple(range(50))).hide(batch, (step,)).targets[1, 10:] == NO_TARGET).all()


# --- Runs ---

SMALL = [
    "steps=6", "model.n_layers=1", "model.d_model=8", "model.n_heads=2", "data.length=16", "data.rows=3",
    "evaluate.every=3", "sample.every=0", "save.every=2", "schedule.warmup=2", "log.curve=false",
    'model.dropout={kind="Dropout", embedding=0.1, attention=0.1, update=0.1}',
]  # fmt: skip


@pytest.fixture
def text(tmp_path):
    lines = [{"text": "the cat sat on the mat. "[: 5 + n % 19]} for n in range(90)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "a.jsonl"


@pytest.fixture
def pairs(tmp_path):
    lines = [{"source": f"{n} cats", "target": f"{n} Katzen"} for n in range(40)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "pairs.jsonl"


def weights(folder, step):
    return dict(open_safetensors(folder / "checkpoints" / f"{step:08}" / "weights.safetensors"))


def losses(folder):
    return [(line["loss"], line.get("validation")) for line in read_journal(folder / "metrics.jsonl")]


def stopped_and_whole(tmp_path, changes):
    """Two runs alike, one of which stops after three steps and goes on in a new one."""
    made = {name: read_run(None, [*SMALL, *changes, f"folder={tmp_path / name}"]) for name in ("whole", "stopped")}
    whole = Run(made["whole"])
    list(whole)
    stopped = Run(made["stopped"])
    for _ in zip(range(3), stopped, strict=False):
        stopped.stop()
    list(Run(made["stopped"], resume=True))
    one, other = weights(tmp_path / "whole", 6), weights(tmp_path / "stopped", 6)
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    assert losses(tmp_path / "whole") == losses(tmp_path / "stopped")
    assert any(loss is not None for loss, _ in losses(tmp_path / "whole"))
    assert saved(whole.checkpoints)
    return whole


@pytest.mark.slow
@pytest.mark.parametrize("order", ["windows", "documents", "packed"])
@pytest.mark.parametrize("objective", ["next_token", "masked"])
def test_trn_3_a_run_of_any_order_goes_on_as_if_it_had_not_stopped(tmp_path, text, objective, order):
    changes = [f"objective={objective}", f"data.order={order}", f"data.text={text}"]
    run = stopped_and_whole(tmp_path, changes)
    batch = run.reader(0)
    if objective == "masked":
        masked, untouched = batch.ids == run.tokenizer.mask_id, batch.targets == NO_TARGET
        assert not (masked & untouched).any()
        assert isinstance(run.transformer.config.masks[0], Bidirectional)
        model = pellucid.load(run.export())
        assert model.tokenizer.mask_id == run.tokenizer.mask_id
        assert model.fills


def test_trn_3_a_translation_goes_on_as_if_it_had_not_stopped(tmp_path, pairs):
    run = stopped_and_whole(tmp_path, ["objective=translation", "smoothing=0.1", f"data.text={pairs}"])
    assert run.transformer.encoder is not None
    batch, end = run.reader(0), run.tokenizer.eos_ids[0]
    for ids, targets, source in zip(batch.ids, batch.targets, batch.source, strict=True):
        told = targets[targets != NO_TARGET].tolist()
        assert told[-1] == end
        assert ids[: len(told)].tolist() == [run.tokenizer.bos_id, *told[:-1]]
        number = run.tokenizer.decode(source.tolist()).split()[0]
        assert run.tokenizer.decode(told[:-1]) == f"{number} Katzen"
    assert read_run(tmp_path / "whole").smoothing == 0.1
    assert pellucid.load(run.export()).start_id == run.tokenizer.bos_id


def test_two_files_of_lines_are_pairs_too(tmp_path, pairs):
    lines = [json.loads(line) for line in pairs.read_text().splitlines()]
    for side in ("source", "target"):
        (tmp_path / f"{side}.txt").write_text("".join(f"{line[side]}\n" for line in lines))
    files = f'data.text=["{tmp_path}/source.txt", "{tmp_path}/target.txt"]'
    found = []
    for name, text in (("a", f"data.text={pairs}"), ("b", files)):
        run = Run(read_run(None, [*SMALL, "objective=translation", text, f"folder={tmp_path / name}"]))
        found.append([run.reader(step) for step in range(5)])
    assert all(
        torch.equal(one.ids, other.ids) and torch.equal(one.source, other.source)
        for one, other in zip(*found, strict=True)
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["objective=masked", 'model.masks=[{kind="Causal"}]'], "objective masked fills gaps from both sides"),
        (['model.masks=[{kind="Bidirectional"}]'], "predicts what comes next, and this model sees it"),
        (["objective=translation", "data.text=PAIRS", "data.length=5"], "have more tokens than data.length = 5"),
        (["objective=translation", "data.text=TEXT"], "line 1: expected a text under source and target"),
        (["objective=translation", "data.text=PAIRS", "data.order=packed"], "data.order must be documents"),
        (["objective=translation", "data.text=[]"], "name them under data.text"),
        (["objective=instruction"], "needs a chat template"),
        (["objective=nothing"], "objective must be"),
        (["smoothing=1.5"], "smoothing must lie in"),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path, text, pairs, changes, said):
    changes = [change.replace("PAIRS", str(pairs)).replace("TEXT", str(text)) for change in changes]
    with pytest.raises(ValueError, match=said):
        Run(read_run(None, [*SMALL, f"data.text={text}", f"folder={tmp_path / 'run'}", *changes]))


def test_a_mask_token_is_needed(tmp_path, text):
    from pellucid.training.assembly import tokenizer_for
    from pellucid.training.documents import corpus_of
    from pellucid.training.tokenizing import tokenize

    (tmp_path / "words").mkdir()
    corpus = corpus_of([text])
    tokenize(tmp_path / "words" / "a.tokens", tokenizer_for("characters", corpus, tmp_path / "words"), corpus)
    changes = ["objective=masked", f"data.tokens={tmp_path / 'words' / 'a.tokens'}", f"folder={tmp_path / 'run'}"]
    with pytest.raises(ValueError, match="needs a tokenizer with a mask token"):
        Run(read_run(None, [*SMALL, *changes]))


def test_an_encoder_may_have_a_shape_of_its_own(tmp_path, pairs):
    changes = ["objective=translation", f"data.text={pairs}", "model.encoder={n_layers=2, d_ff=10}"]
    run = Run(read_run(None, [*SMALL, *changes, f"folder={tmp_path / 'run'}"]))
    config = run.transformer.config
    assert (config.n_layers, config.encoder.n_layers, config.encoder.d_ff) == (1, 2, 10)
    assert config.encoder == replace(config.encoder, head=None, masks=(Bidirectional(),), vocab_size=config.vocab_size)

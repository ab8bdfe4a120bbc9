"""What a head writes in a text and what it reads by its weights, against the ledger, the sites and whole matrices."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from any_edits import some_edits
from pellucid.inside import edits as edit
from pellucid.inside.circuits import full_ov, full_qk
from pellucid.inside.shown.head_reading import head_reading
from pellucid.inside.shown.head_writes import SHOWN, head
from pellucid.model.config import Config, Init, LayerNorm, MaskedLanguage, PostNorm, RMSNorm
from pellucid.model.rotary import Rotary
from tiny import VOCAB, build, configs, random_ids, tiny_gpt2, traced, with_encoder


def by_source(run, name, number, token, position):
    """What one head brought from each key by the ledger."""
    entries = dict(run.ledger(token, by="head and source", position=position).entries)
    prefix = f"{name} head {number} from "
    found = {key.removeprefix(prefix): amount for key, amount in entries.items() if key.startswith(prefix)}
    return {int(key.split("position ")[1].split(" ")[0]): amount for key, amount in found.items()}


@pytest.mark.slow
@settings(max_examples=30)
@given(configs(), st.data())
def test_a_head_is_what_sites_and_ledger_say(config, data):
    model = build(config)
    run = traced(model, random_ids(1, 6))
    edited = data.draw(st.booleans())
    if edited:
        run = run.edit(*some_edits(data.draw, model, run))
    part = data.draw(st.sampled_from(["attention"] if config.encoder is None else ["attention", "cross"]))
    layer, number = data.draw(st.integers(0, config.n_layers - 1)), data.draw(st.integers(0, config.n_heads - 1))
    position, token = data.draw(st.integers(0, 5)), data.draw(st.integers(-1, VOCAB - 1))
    found = head(run, layer, number, part, position, token)
    name = f"{model.prefix}{layer}.{part}"
    writes, pattern = run[f"{name}.writes"][0, :, number], run[f"{name}.pattern"][0, number, position]
    assert found["norms"] == pytest.approx(writes.norm(dim=-1).tolist(), rel=1e-6, abs=1e-9)
    shown = [one["position"] for one in found["attended"]]
    assert shown == pattern.argsort(descending=True, stable=True)[: len(shown)].tolist()
    assert [one["attention"] for one in found["attended"]] == pytest.approx(pattern[shown].tolist())
    assert found["rest"]["attention"] == pytest.approx(float(pattern.sum() - pattern[shown].sum()), abs=1e-9)
    if config.head is None or isinstance(config.head, MaskedLanguage):
        assert found["effect"] is None
        assert found["note"]
        return
    assert found["token"]["id"] == (int(run.logits_at(0, [position])[0].argmax()) if token == -1 else token)
    amounts = by_source(run, name, number, found["token"]["id"], position)
    for one in found["attended"]:
        assert one["amount"] == pytest.approx(amounts[one["position"]], rel=1e-5, abs=1e-7)
    total = math.fsum(amounts.values())
    assert found["effect"] - found["edit"] == pytest.approx(total, rel=1e-5, abs=1e-6)
    assert found["rest"]["amount"] == pytest.approx(
        total - math.fsum(one["amount"] for one in found["attended"]), rel=1e-5, abs=1e-6
    )
    if not edited:
        assert found["edit"] == 0
        by_head = dict(run.ledger(found["token"]["id"], by="head", position=position).entries)
        assert found["effect"] == pytest.approx(by_head[f"{name} head {number}"], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("block", [None, PostNorm(), PostNorm(True)])
def test_the_words_of_a_key_are_those_the_ledger_raises(block):
    changes = {} if block is None else {"block": block}
    run = traced(tiny_gpt2(logit_scale=0.5, **changes), random_ids(1, 6))
    found = head(run, 1, 2, position=4)
    by_token = [by_source(run, "1.attention", 2, token, 4) for token in range(VOCAB)]
    for one in found["attended"]:
        key = one["position"]
        amounts = torch.tensor([amounts[key] for amounts in by_token]) / one["attention"]
        amounts = amounts - amounts.mean()
        best = amounts.sort(descending=True)
        assert [word[2] for word in one["writes"]] == best.indices[:6].tolist()
        assert [word[1] for word in one["writes"]] == pytest.approx(best.values[:6].tolist(), rel=1e-4, abs=1e-5)
        assert [word[0] for word in one["writes"]] == [str(word[2]) for word in one["writes"]]


def test_a_head_that_is_off_writes_nothing_and_says_what_the_edit_took():
    run = traced(tiny_gpt2(), random_ids(1, 6))
    before = head(run, 1, 2, token=7)
    off = head(run.edit(edit.zero("1.attention.heads", head=2)), 1, 2, token=7)
    assert off["norms"] == [0.0] * 6
    assert off["effect"] == 0
    amounts = math.fsum(one["amount"] for one in off["attended"]) + off["rest"]["amount"]
    assert off["edit"] == pytest.approx(-amounts, abs=1e-12)
    assert [one["attention"] for one in off["attended"]] == [one["attention"] for one in before["attended"]]


def test_long_texts_are_told_of_by_their_strongest_keys():
    run = traced(tiny_gpt2(), random_ids(1, 16))
    found = head(run, 0, 0)
    assert len(found["attended"]) == SHOWN
    assert found["rest"]["keys"] == 16 - SHOWN
    shares = [one["attention"] for one in found["attended"]]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) + found["rest"]["attention"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"layer": 2}, r"layer must lie in 0\.\.1"),
        ({"head": -1}, r"head must lie in 0\.\.3"),
        ({"part": "cross"}, "part must be 'attention'"),
        ({"position": 6}, r"positions 0\.\.5, got position=6"),
        ({"token": 50}, r"token ids lie in 0\.\.49, got 50"),
    ],
)
def test_what_there_is_not_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        head(traced(tiny_gpt2(), random_ids(1, 6)), **wrong)


# --- By the weights alone ---


def scaled(model):
    """Each token's own scale in the norm that is read through, from the formula."""
    x, norm = model.embed.words * model.config.embedding_scale, model.config.norm
    if isinstance(model.config.block, PostNorm):
        return torch.ones(len(x), 1).double()
    x = x - x.mean(-1, keepdim=True) if isinstance(norm, LayerNorm) else x
    return 1 / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt()


def table_of(whole, k):
    """The k largest entries above their row's mean."""
    whole = whole - whole.mean(1, keepdim=True)
    best = whole.flatten().sort(descending=True)
    return [divmod(at, whole.shape[1]) for at in best.indices[:k].tolist()], best.values[:k].tolist()


@settings(max_examples=25)
@given(configs(), st.data())
def test_the_strongest_pairs_are_those_of_the_whole_matrix(config, data):
    model = build(config)
    layer, number = data.draw(st.integers(0, config.n_layers - 1)), data.draw(st.integers(0, config.n_heads - 1))
    offset = data.draw(st.integers(0, 3))
    found = head_reading(model, None, layer, number, 9, offset)
    scale = scaled(model)
    fits = full_qk(model, layer, number, offset)
    expected = [(fits.left @ fits.right) * scale * scale.T * config.attention_scale(layer)]
    tables = [found["qk"]]
    if config.head is not None and not isinstance(config.head, MaskedLanguage):
        moves = full_ov(model, layer, number)
        expected.append(moves.left @ moves.right * scale)
        tables.append(found["ov"])
    else:
        assert found["ov"] is None
        assert found["note"]
    for whole, table in zip(expected, tables, strict=True):
        pairs, values = table_of(whole, 9)
        assert [(row[1], row[3]) for row in table["rows"]] == pairs
        assert [row[4] for row in table["rows"]] == pytest.approx(values, rel=1e-9, abs=1e-9)
        assert [row[0] for row in table["rows"]] == [str(pair[0]) for pair in pairs]


def test_scores_by_the_weights_are_the_scores_of_a_text_without_positions():
    """Layer 0 of a rotary model reads the embeddings alone: the table's best pair as a text has that score."""
    shape = Config(VOCAB, 32, 1, 24, 3, positions=Rotary(), norm=RMSNorm(), qkv_bias=False, init=Init(0.4))
    model = build(shape)
    _, query, _, key, value = head_reading(model, None, 0, 1, 1, 2)["qk"]["rows"][0]
    texts = torch.tensor([[other, 3, query] for other in range(VOCAB)])
    scores = traced(model, texts)["0.attention.scores"][:, 1, 2, 0]
    assert int(scores.argmax()) == key
    assert value == pytest.approx(float(scores[key] - scores.mean()), abs=1e-9)


def test_what_the_weights_say_of_a_text_is_what_they_say_of_its_tokens():
    model = build(Config(VOCAB, 32, 2, 24, 4, n_kv_heads=2, positions=Rotary(), norm=RMSNorm(), init=Init(0.4)))
    ids = random_ids(1, 6)
    found = head(traced(model, ids), 1, 3, position=5)
    scale = scaled(model)
    moves, back = full_ov(model, 1, 3), found["fits"]["back"]
    raises = moves.left @ moves.right * scale
    for one in found["attended"]:
        row = raises[ids[0, one["position"]]]
        best = (row - row.mean()).sort(descending=True)
        assert [word[2] for word in one["moves"]] == best.indices[:6].tolist()
        assert [word[1] for word in one["moves"]] == pytest.approx(best.values[:6].tolist(), rel=1e-9)
    assert back == 5 - found["attended"][0]["position"]
    fits = full_qk(model, 1, 3, back, 6)
    scores = ((fits.left @ fits.right) * scale * scale.T)[ids[0, 5]] * 6**-0.5
    best = (scores - scores.mean()).sort(descending=True)
    assert [word[2] for word in found["fits"]["keys"]] == best.indices[:6].tolist()
    assert [word[1] for word in found["fits"]["keys"]] == pytest.approx(best.values[:6].tolist(), rel=1e-9)


def test_cross_attention_and_readers_of_other_words_have_no_reading():
    model = build(with_encoder(Config(VOCAB, 32, n_layers=1, d_model=12, n_heads=3, n_kv_heads=1, init=Init(0.4))))
    found = head(traced(model, random_ids(1, 4)), part="cross")
    assert found["fits"] is None
    assert "moves" not in found["attended"][0]
    assert len(found["attended"][0]["writes"]) == 6


def test_readings_that_there_are_not_are_refused():
    model = tiny_gpt2()
    for wrong, says in (
        ({"layer": 2}, r"layers 0\.\.1"),
        ({"head": 4}, r"heads 0\.\.3"),
        ({"k": 0}, r"k must lie in 1\.\.50, got 0"),
        ({"offset": 16}, r"offset must lie in 0\.\.15 \(tokens back\), got 16"),
    ):
        with pytest.raises(ValueError, match=says):
            head_reading(**({"transformer": model, "tokenizer": None, "layer": 0, "head": 0} | wrong))

"""Neurons over a corpus against every activation read from traces and sorted, one neuron at a time."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pellucid.inside.neuron_scan as scanning
from pellucid.inside.neuron_scan import scan
from pellucid.inside.neurons import Neurons, Scan
from pellucid.inside.trace import trace
from pellucid.model.config import Relu
from pellucid.text import Tokenizer
from tiny import build, configs, random_ids, tiny_gpt2, with_encoder


def corpus(rows: int, seed: int = 0) -> list[list[int]]:
    """Rows of different lengths."""
    lengths = torch.randint(1, 9, (rows,), generator=torch.Generator().manual_seed(seed)).tolist()
    return [random_ids(1, length, seed=seed + at)[0].tolist() for at, length in enumerate(lengths)]


def activations(model, rows, chosen):
    """(value, row, position) of every token, by layer and neuron, in the order of the text; of the same batches."""
    found = {}
    for first in range(0, len(rows), chosen.batch):
        batch = rows[first : first + chosen.batch]
        width = max(map(len, batch))
        ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in batch])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in batch])
        seen = trace(model, ids, None if mask.all() else mask)
        for layer in range(model.config.n_layers):
            values = seen[f"{model.prefix}{layer}.ffn.neurons"].tolist()
            for neuron in range(model.config.d_ff):
                for at, row in enumerate(batch):
                    kept = [(values[at][t][neuron], first + at, t) for t in range(chosen.skip, len(row))]
                    found.setdefault((layer, neuron), []).extend(kept)
    return found


def around(rows, row, position, settings):
    ids = dict(enumerate(rows[row]))
    return [ids.get(position + step, -1) for step in range(-settings.before, settings.after + 1)]


def check(found: Neurons, model, rows) -> None:
    chosen = found.settings
    for (layer, neuron), seen in activations(model, rows, chosen).items():
        values = [value for value, _, _ in seen]
        for kept, sign in ((found.highest, 1), (found.lowest, -1)):
            if kept is None:
                continue
            expected = sorted(seen, key=lambda each: -sign * each[0])[: chosen.k]
            got = kept.values[layer, :, neuron]
            assert len(got) == chosen.k
            torch.testing.assert_close(
                got[: len(expected)], torch.tensor([sign * each[0] for each in expected], dtype=got.dtype)
            )
            told = [[row, at, *around(rows, row, at, chosen)] for _, row, at in expected]
            assert kept.seen[layer, : len(expected), neuron].tolist() == told
            assert (got[len(expected) :] == -torch.inf).all()
        assert float(found.mean[layer, neuron]) == pytest.approx(sum(values) / len(values), abs=1e-12)
        assert float(found.fraction[layer, neuron]) == sum(value > 0 for value in values) / len(values)


@pytest.mark.slow
@settings(max_examples=8)
@given(configs("all").filter(lambda config: config.encoder is None), st.integers(1, 4), st.booleans())
def test_the_strongest_texts_are_those_of_a_plain_sort(config, batch, lowest):
    model, rows = build(config), corpus(7)
    chosen = Scan(k=5, lowest=lowest, batch=batch, before=2, after=1, skip=batch % 2)
    found = scan(model, rows, chosen)
    check(found, model, rows)
    assert (found.rows, found.done) == (7, True)
    assert found.tokens == sum(max(0, len(row) - chosen.skip) for row in rows)


@pytest.mark.parametrize("batch", [1, 3])
def test_equal_values_keep_the_first_that_were_seen(batch):
    model, row = tiny_gpt2(activation=Relu(), d_ff=20), [3, 1, 4, 1, 5]
    rows = [[9], row, row, row, [2, 6], row]
    found = scan(model, rows, Scan(k=4, lowest=True, batch=batch, before=1, after=0))
    check(found, model, rows)
    assert (found.highest.values[0] == 0).any()  # where few are above 0, zeros are kept, and they are all equal


def test_an_encoder_is_scanned_by_itself():
    model = build(with_encoder(tiny_gpt2(d_ff=20).config))
    with pytest.raises(ValueError, match=r"scan the encoder by itself"):
        scan(model, [[1, 2]])
    rows = corpus(3)
    check(scan(model.encoder, rows, Scan(k=3)), model.encoder, rows)


def same(one: Neurons, other: Neurons) -> bool:
    pairs = [(one.highest, other.highest), (one.lowest, other.lowest)]
    tensors = [(one.sums, other.sums), (one.active, other.active)]
    tensors += [(a.values, b.values) for a, b in pairs if a and b] + [(a.seen, b.seen) for a, b in pairs if a and b]
    facts = [(each.rows, each.tokens, each.digest, each.model, each.done, each.settings) for each in (one, other)]
    return facts[0] == facts[1] and all(torch.equal(a, b) for a, b in tensors)


class StoppedError(Exception):
    pass


def stopping(rows, after):
    for at, row in enumerate(rows):
        if at == after:
            raise StoppedError
        yield row


@pytest.mark.parametrize("after", [1, 6, 9, 16])
def test_an_interrupted_scan_goes_on_to_the_same_bits(tmp_path, monkeypatch, after):
    monkeypatch.setattr(scanning, "EVERY", 2)
    model, rows, chosen = tiny_gpt2(torch.float32), corpus(17), Scan(k=4, batch=3, lowest=True)
    whole, folder = scan(model, rows, chosen), tmp_path / "scan"
    with pytest.raises(StoppedError):
        scan(model, stopping(rows, after), chosen, folder=folder)
    if after >= 6:
        assert Neurons.load(folder).rows == 6 * (after // 6)
        assert not Neurons.load(folder).done
    told = []
    again = scan(model, iter(rows), chosen, folder=folder, progress=told.append)
    assert same(again, whole)
    assert same(Neurons.load(folder), whole)
    assert sum(told) == whole.tokens
    assert len(list(folder.iterdir())) == 2
    assert same(scan(model, rows, chosen, folder=folder), whole)  # nothing is left to do


def test_a_scan_of_something_else_is_not_gone_on_with(tmp_path):
    model, rows, chosen = tiny_gpt2(), corpus(5), Scan(k=2)
    scan(model, rows, chosen, folder=tmp_path)
    for other, texts, changed in (
        (model, rows, Scan(k=3)),
        (model, rows[::-1], chosen),
        (model, [*rows, [1]], chosen),
        (model, rows[:4], chosen),
        (tiny_gpt2(tied=False), rows, chosen),
    ):
        with pytest.raises(ValueError, match="choose another folder"):
            scan(other, texts, changed, folder=tmp_path)
    assert Neurons.load(tmp_path).rows == 5


def test_a_damaged_scan_is_refused(tmp_path):
    found = scan(tiny_gpt2(), corpus(4), Scan(k=2), folder=tmp_path)
    path = tmp_path / "scan.json"
    state = json.loads(path.read_text())
    bad = [{"schema": "other"}, {"rows": -1}, {"rows": True}, {"tensors": "../x"}, {"tensors": "neurons-absent"}]
    bad += [{"settings": {"k": 3}}, {"settings": {"k": 0}}, {"settings": {"words": 1}}, {"model": None}]
    for change in bad:
        path.write_text(json.dumps(state | change))
        with pytest.raises(ValueError, match=r"expected|must|settings"):
            Neurons.load(tmp_path)
    path.write_text("[" * 5000)
    with pytest.raises(ValueError, match="expected JSON"):
        Neurons.load(tmp_path)
    path.write_text(json.dumps(state))
    file = tmp_path / state["tensors"]
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ValueError, match="expected the tensors"):
        Neurons.load(tmp_path)
    found.save(tmp_path)
    assert same(Neurons.load(tmp_path), found)


def test_the_model_runs_once_and_is_left_alone():
    model = tiny_gpt2()
    model.train()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    found = scan(model, (row for row in corpus(4)), Scan(k=2))
    assert found.rows == 4
    assert model.training
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("rows", [[], [[]], [[1, 2], []], [[1]]])
def test_nothing_to_count(rows):
    with pytest.raises(ValueError, match=r"nothing to count|no tokens"):
        scan(tiny_gpt2(), rows, Scan(skip=1))


def test_values_that_are_not_finite_are_refused():
    model = tiny_gpt2()
    with torch.no_grad():
        model.blocks[1].ffn.up.weight[3] = torch.nan
    with pytest.raises(ValueError, match="layer 1 are not finite"):
        scan(model, [[1, 2]])


@pytest.mark.parametrize("wrong", [{"k": 0}, {"batch": 0}, {"before": -1}, {"k": True}])
def test_settings_that_make_no_sense(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Scan(**wrong)


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """A tokenizer of one token a letter: a is 0."""
    from tokenizers import Tokenizer as Raw
    from tokenizers import decoders, models, pre_tokenizers

    raw = Raw(models.BPE({chr(97 + at): at for at in range(26)}, []))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    path = tmp_path_factory.mktemp("letters") / "tokenizer.json"
    raw.save(str(path))
    return Tokenizer.from_json(path)


def test_tables_show_the_token_and_what_stands_around_it(letters):
    model = tiny_gpt2(d_ff=20)
    rows = [[0, 1, 2, 3, 4, 5, 6], [5, 3, 1], [6, 6, 6]]
    chosen = Scan(k=3, before=2, after=1, lowest=True)
    found, every = scan(model, rows, chosen, letters), activations(model, rows, chosen)
    seen = every[1, 7]
    value, row, at = max(seen)
    table = found.texts(1, 7, k=1)
    text = "".join(chr(97 + each) for each in rows[row])
    expected = (value, text[max(0, at - 2) : at], text[at], text[at + 1 : at + 2], row, at)
    assert table.rows[0] == (pytest.approx(expected[0]), *expected[1:])
    assert found.texts(1, 7, lowest=True).rows[0][0] == pytest.approx(min(seen)[0])
    summary = found.table(1).rows[7]
    assert summary[:4] == (1, 7, pytest.approx(value), text[at])
    assert [row[2] for row in found.top(3)] == sorted([row[2] for row in found.table()], reverse=True)[:3]
    hits = {
        place: [each for each in sorted(seen, key=lambda each: -each[0])[:3] if rows[each[1]][each[2]] == 6]
        for place, seen in every.items()
    }
    order = sorted((place for place in hits if hits[place]), key=lambda place: (-len(hits[place]), -hits[place][0][0]))
    assert [row[:2] for row in found.firing("g", k=8)] == order[:8]
    assert found.to_json()["tokens"] == 13


def test_neurons_that_are_not_there():
    found = scan(tiny_gpt2(), [[1, 2, 3]], Scan(k=2))
    with pytest.raises(ValueError, match=r"0\.0 to 1\.127 .* got 2\.0"):
        found.texts(2, 0)
    with pytest.raises(ValueError, match="lowest=True"):
        found.texts(0, 0, lowest=True)
    with pytest.raises(ValueError, match="give the id"):
        found.firing(" Paris")

"""Batches: which ids, which targets, which order, and what a row may see."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pellucid.training.batch import Batch
from pellucid.training.readers import Documents, Sequential, Span, Windows, once, split
from pellucid.training.token_file import open_tokens, writing


@pytest.fixture
def make(tmp_path):
    def tokens(*documents):
        with writing(tmp_path / "a", 1000) as writer:
            for document in documents:
                writer.add(document)
        file = open_tokens(tmp_path / "a")
        return Span(file, 0, len(file))

    return tokens


def starts_of(reader, steps=200):
    return {int(row[0]) for step in range(steps) for row in reader(step).ids}


@pytest.mark.parametrize("size", [5, 8])
def test_trn_4_short_dataset_is_refused(make, size):
    span = make(range(size))
    for reader in (Windows, Sequential):
        with pytest.raises(ValueError, match=f"{size} tokens are too few: at least 9 are needed"):
            reader(span, 8, 2)


@pytest.mark.parametrize(("size", "starts"), [(9, {0}), (10, {0, 1})])
def test_trn_4_every_start_that_leaves_room_is_drawn(make, size, starts):
    reader = Windows(make(range(size)), 8, 4)
    assert starts_of(reader) == starts
    batch = reader(0)
    assert batch.ids.shape == batch.targets.shape == (4, 8)
    assert torch.equal(batch.targets, batch.ids + 1)


def test_windows_depend_on_seed_and_step_alone(make):
    span = make(range(500))
    one, other = Windows(span, 8, 4, seed=1), Windows(span, 8, 4, seed=2)
    assert torch.equal(one(5).ids, Windows(span, 8, 4, seed=1)(5).ids)
    assert not torch.equal(one(5).ids, one(6).ids)
    assert not torch.equal(one(5).ids, other(5).ids)


def test_windows_draw_every_start_alike(make):
    reader = Windows(make(range(13)), 3, 20)
    counts = np.bincount(torch.cat([reader(step).ids[:, 0] for step in range(500)]).numpy())
    assert len(counts) == 10
    # 10,000 draws over 10 starts: a standard deviation is 30
    assert abs(counts - 1000).max() < 150


def test_sequential_reads_every_target_once_a_round(make):
    reader = Sequential(make(range(30)), 4, 3)
    assert reader.windows == 7
    rows = [row.tolist() for step in range(7) for row in reader(step).ids]
    assert rows == [list(range(4 * (n % 7), 4 * (n % 7) + 4)) for n in range(21)]


def test_validation_takes_each_window_once(make):
    batches = [batch() for batch in once(make(range(30)), 4, 3)]
    assert [len(batch.ids) for batch in batches] == [3, 3, 1]
    assert torch.cat([batch.targets.flatten() for batch in batches]).tolist() == list(range(1, 29))


def test_a_split_keeps_the_last_tokens_back(make):
    file = make(range(100)).file
    first, last = split(file, 0.1)
    assert (first.first, first.last, last.first, last.last) == (0, 90, 90, 100)
    assert split(file, 0.0)[1] is None
    assert starts_of(Windows(first, 8, 30)) == set(range(82))
    with pytest.raises(ValueError, match="must lie in"):
        split(file, 1.0)


def test_ids_outside_the_vocabulary_are_found(make, tmp_path):
    make(range(20))
    data = bytearray((tmp_path / "a").read_bytes())
    data[64:66] = b"\xff\xff"
    (tmp_path / "a").write_bytes(bytes(data))
    file = open_tokens(tmp_path / "a")
    with pytest.raises(ValueError, match="holds id 65535"):
        Sequential(Span(file, 0, 20), 8, 1)(0)


@pytest.mark.slow
@given(st.lists(st.integers(1, 14), min_size=1, max_size=12), st.integers(1, 5), st.integers(1, 4))
def test_documents_are_read_whole_and_alone(tmp_path_factory, sizes, length, rows):
    path = tmp_path_factory.mktemp("documents") / "a"
    numbers = iter(range(1000))
    documents = [[next(numbers) for _ in range(size)] for size in sizes]
    with writing(path, 1000) as writer:
        for document in documents:
            writer.add(document)
    file = open_tokens(path)
    pairs = {pair for document in documents for pair in pairwise(document)}
    if not pairs:
        with pytest.raises(ValueError, match="no document has two tokens"):
            Documents(Span(file, 0, len(file)), length, rows)
        return
    reader = Documents(Span(file, 0, len(file)), length, rows, seed=3)
    for turn in range(2):
        seen = []
        for number in range(reader.batches):
            batch = reader(turn * reader.batches + number)
            assert batch.ids.shape[1] <= length
            for ids, targets, mask in rows_of(batch):
                assert mask.tolist() == sorted(mask.tolist(), reverse=True)
                assert targets[~mask].tolist() == [-100] * int((~mask).sum())
                seen += zip(ids[mask].tolist(), targets[mask].tolist(), strict=True)
                owners = {
                    next(n for n, document in enumerate(documents) if id in document) for id in ids[mask].tolist()
                }
                assert len(owners) == 1
        # every pair of neighbours inside a document, once
        assert sorted(seen) == sorted(pairs)


def rows_of(batch):
    mask = torch.ones_like(batch.ids, dtype=torch.bool) if batch.mask is None else batch.mask
    return zip(batch.ids, batch.targets, mask, strict=True)


def test_documents_can_be_asked_for_any_step(make):
    span = make(*[range(n, n + n % 7 + 2) for n in range(20)])
    straight, jumping = Documents(span, 4, 3, seed=1), Documents(span, 4, 3, seed=1)
    batches = [straight(step) for step in range(40)]
    for step in (39, 3, 17, 0, 38):
        assert torch.equal(jumping(step).ids, batches[step].ids)


def test_a_document_is_read_as_if_it_were_alone(make):
    import tiny

    model = tiny.tiny_gpt2()
    reader = Documents(make([1, 2, 3, 4, 5], [9, 8, 7], [20, 21]), 6, 3)
    batch = reader(0)
    logits = model(batch.ids, batch.mask)
    for row, (ids, _, mask) in enumerate(rows_of(batch)):
        alone = model(ids[mask][None])
        assert torch.allclose(logits[row, mask], alone[0], atol=1e-12)


def test_rows_and_devices_of_a_batch():
    batch = Batch(torch.zeros(4, 3, dtype=torch.int64), torch.ones(4, 3, dtype=torch.int64), mask=torch.ones(4, 3))
    part = batch.rows(1, 3)
    assert (part.ids.shape, part.targets.shape, part.mask.shape, part.source) == ((2, 3), (2, 3), (2, 3), None)
    assert batch.to("meta").mask.device.type == "meta"

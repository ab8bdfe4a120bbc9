"""Packed rows: every document whole and once, nothing of another in sight, little padding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from pellucid.training.objectives import next_token
from pellucid.training.packed import Packed
from pellucid.training.readers import Documents, Span
from pellucid.training.token_file import open_tokens, writing


def span_of(folder, documents, flags=None):
    with writing(folder / "a", 1000) as writer:
        for document in documents:
            writer.add(document)
    file, beside = open_tokens(folder / "a"), None
    if flags is not None:
        with writing(folder / "b", 2) as writer:
            for document in flags:
                writer.add(document)
        beside = open_tokens(folder / "b")
    return Span(file, 0, len(file), flags=beside)


def pieces_in(batch):
    """(ids, targets) of each document of each row."""
    mask = torch.ones_like(batch.ids) if batch.mask is None else batch.mask.long()
    for ids, targets, numbers in zip(batch.ids, batch.targets, mask, strict=True):
        assert (targets[numbers == 0] == -100).all()
        for number in range(1, int(numbers.max()) + 1):
            yield ids[numbers == number].tolist(), targets[numbers == number].tolist()


@settings(max_examples=40)
@given(st.lists(st.integers(2, 14), min_size=1, max_size=40), st.integers(4, 16), st.integers(1, 3))
def test_every_round_reads_each_piece_once(tmp_path_factory, sizes, length, rows):
    numbers = iter(range(1000))
    documents = [[next(numbers) for _ in range(size)] for size in sizes]
    span = span_of(tmp_path_factory.mktemp("packed"), documents)
    expected = []
    for document in documents:
        for at in range(0, len(document) - 1, length):
            piece = document[at : at + length + 1]
            expected.append((piece[:-1], piece[1:]))
    reader = Packed(span, length, rows, seed=2)
    rounds = [[reader(turn * reader.batches + n) for n in range(reader.batches)] for turn in range(2)]
    for batches in [*rounds, [batch() for batch in reader.once()]]:
        assert all(batch.ids.shape[1] <= length for batch in batches)
        assert sorted(piece for batch in batches for piece in pieces_in(batch)) == sorted(expected)


def test_rows_are_full_where_documents_are_short(tmp_path):
    span = span_of(tmp_path, [[1] * (2 + n % 30) for n in range(300)])
    packed, apart = Packed(span, 64, 1), Documents(span, 64, 1)
    places = sum(packed(n).ids.numel() for n in range(packed.batches))
    tokens = sum(len(ids) for n in range(packed.batches) for ids, _ in pieces_in(packed(n)))
    assert tokens == sum(1 + n % 30 for n in range(300))
    assert packed.batches <= 1.05 * tokens / 64 + 1
    assert tokens / places > 0.95
    assert packed.batches < apart.batches / 3


def test_batches_depend_on_seed_and_step_alone(tmp_path):
    span = span_of(tmp_path, [range(n, n + 2 + n % 7) for n in range(60)])
    straight, jumping, other = Packed(span, 12, 3, 1), Packed(span, 12, 3, 1), Packed(span, 12, 3, 2)
    batches = [straight(step) for step in range(30)]
    for step in (29, 3, 17, 0, 28):
        assert torch.equal(jumping(step).ids, batches[step].ids)
    assert any(not torch.equal(other(step).ids, batches[step].ids) for step in range(5))


@pytest.mark.slow
@settings(max_examples=25)
@given(tiny.configs("decoder"), st.lists(st.integers(2, 9), min_size=2, max_size=9))
def test_the_loss_is_that_of_the_documents_alone(tmp_path_factory, config, sizes):
    ids = iter(tiny.random_ids(1, 100)[0].tolist())
    documents = [[next(ids) for _ in range(size)] for size in sizes]
    span = span_of(tmp_path_factory.mktemp("packed"), documents)
    model, reader = tiny.build(config), Packed(span, 16, 2, seed=3)
    together = [next_token(model, reader(n)) for n in range(reader.batches)]
    alone = Documents(span, 16, 1)
    apart = [next_token(model, alone(n)) for n in range(alone.batches)]
    assert sum(count for _, count in together) == sum(count for _, count in apart) == sum(sizes) - len(sizes)
    assert sum(loss.item() for loss, _ in together) == pytest.approx(sum(loss.item() for loss, _ in apart), rel=1e-11)


def test_only_flagged_ids_are_targets(tmp_path):
    span = span_of(tmp_path, [[1, 2, 3, 4], [5, 6, 7], [8, 9]], [[0, 0, 1, 1], [1, 0, 0], [0, 1]])
    found = sorted(piece for reader in (Packed, Documents) for piece in pieces_in(reader(span, 8, 4)(0)))
    # the second document has no target but its first id, which nothing predicts
    assert found == sorted(2 * [([1, 2, 3], [-100, 3, 4]), ([8], [9])])

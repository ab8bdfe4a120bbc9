"""Rows with several documents: each is read as if it stood alone, whatever the model."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

import tiny
from pellucid.model.cache import Cache
from pellucid.model.config import Bidirectional, Window
from pellucid.model.place import columns, pick, place_of, row_of, tail
from pellucid.model.transformer import Transformer

ROWS = ([3, 4, 2], [6, 1], [1, 1, 5])  # how long the documents are; the rest of a row of 9 is padding
CPU = torch.device("cpu")


def numbered(rows=ROWS, width=9):
    """The mask of rows of documents of these lengths."""
    mask = torch.zeros(len(rows), width, dtype=torch.int64)
    for row, lengths in enumerate(rows):
        numbers = torch.repeat_interleave(torch.arange(1, len(lengths) + 1), torch.tensor(lengths))
        mask[row, : len(numbers)] = numbers
    return mask


def documents(rows=ROWS):
    """(row, columns) of each document."""
    for row, lengths in enumerate(rows):
        start = 0
        for length in lengths:
            yield row, slice(start, start + length)
            start += length


@pytest.mark.slow
@settings(max_examples=30)
@given(tiny.configs("decoder"))
def test_each_document_is_read_as_if_it_were_alone(config):
    model, ids = tiny.build(config), tiny.random_ids(3, 9)
    together = model(ids, numbered())
    for row, where in documents():
        assert torch.allclose(together[row, where], model(ids[row : row + 1, where])[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("mask", [Bidirectional(), Window(2)])
def test_open_and_fused_attention_see_the_same_documents(mask):
    model, ids = tiny.tiny_gpt2(masks=(mask,)), tiny.random_ids(3, 9)
    seen = {}
    looks = {"0.attention.pattern": lambda value, place, keys: seen.setdefault("pattern", value)}
    assert torch.allclose(model(ids, numbered()), model(ids, numbered(), looks), atol=1e-12)
    numbers = numbered()
    apart = (numbers[:, :, None] != numbers[:, None, :])[:, None].expand_as(seen["pattern"])
    assert seen["pattern"][apart].abs().max() == 0
    assert torch.allclose(seen["pattern"].sum(-1), (numbers > 0).double()[:, None], atol=1e-12)


@pytest.mark.parametrize("shared", [True, False])
def test_pairs_of_texts_are_packed_side_by_side(shared):
    config = tiny.with_encoder(tiny.tiny_gpt2().config, shared=shared)
    model, ids, source = tiny.build(config), tiny.random_ids(2, 9), tiny.random_ids(2, 7, seed=2) % 40
    ours, theirs = ([3, 4, 2], [2, 5]), ([2, 1, 3], [3, 4])
    mask, source_mask = numbered(ours), numbered(theirs, 7)
    together = model(ids, mask, source=source, source_mask=source_mask)
    for (row, where), (_, read) in zip(documents(ours), documents(theirs), strict=True):
        alone = model(ids[row : row + 1, where], source=source[row : row + 1, read])
        assert torch.allclose(together[row, where], alone[0], rtol=0, atol=1e-10)


def test_a_table_of_positions_need_only_hold_the_longest_document():
    model = tiny.tiny_gpt2(context_length=4)
    assert model(tiny.random_ids(3, 9), numbered([[3, 4, 2], [4, 1], [1, 1, 4]])).isfinite().all()
    with pytest.raises(ValueError, match="the input has 5 positions"):
        model(tiny.random_ids(1, 9), numbered([[4, 5]]))


def test_one_document_is_what_a_mask_of_ones_says():
    model, ids = tiny.tiny_gpt2(), tiny.random_ids(1, 9)
    assert torch.equal(model(ids, numbered([[9]])), model(ids))
    assert place_of((1, 9), numbered([[9]]), CPU).document is None
    assert torch.allclose(model(ids, 3 * numbered([[9]])), model(ids), atol=1e-12)


def test_padding_may_stand_anywhere():
    model, ids = tiny.tiny_gpt2(), tiny.random_ids(1, 8)
    mask = torch.tensor([[0, 2, 2, 0, 2, 0, 5, 5]])
    logits = model(ids, mask)
    assert torch.allclose(logits[0, [1, 2, 4]], model(ids[:, [1, 2, 4]])[0], atol=1e-12)
    assert torch.allclose(logits[0, 6:], model(ids[:, 6:])[0], atol=1e-12)


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ([[1, 2, 1]], "their numbers rise"),
        ([[2, 0, 1]], "their numbers rise"),
        ([[2, -1, 0]], "tell the documents of a row apart"),
        ([[0, 0, 0], [1, 1, 2]], "row 0 of the padding mask holds no token"),
        ([[1, 2]], "must have the ids' shape"),
        ([[0.0, 2.0, 1.0]], "scores are not added here"),
    ],
)
def test_masks_that_number_no_documents_are_refused(mask, said):
    mask = torch.tensor(mask)
    with pytest.raises(ValueError, match=said):
        tiny.tiny_gpt2()(tiny.random_ids(len(mask), 3), mask)


def test_several_documents_are_not_continued():
    model = tiny.tiny_gpt2()
    with pytest.raises(ValueError, match="give each a row of its own"):
        model.begin(tiny.random_ids(3, 9), numbered(), Cache())


def test_several_documents_are_not_traced():
    with pytest.raises(ValueError, match="a trace reads one text a row"):
        tiny.traced(tiny.tiny_gpt2(), tiny.random_ids(3, 9), numbered())


def test_parts_of_a_place_keep_their_documents():
    whole = place_of((3, 9), numbered(), CPU)
    for part, expected in (
        (tail(whole, 4), numbered()[:, 4:]),
        (columns(whole, [1, 5]), numbered()[:, [1, 5]]),
        (pick(whole, [2, 0]), numbered()[[2, 0]]),
        (row_of(whole, 1), numbered()[1:2]),
    ):
        assert torch.equal(part.document, expected)
        assert part.positions.shape == part.real.shape == expected.shape


def test_gradients_of_a_packed_row_are_those_of_its_documents():
    model = Transformer(replace(tiny.tiny_gpt2().config)).double()
    ids, mask = tiny.random_ids(3, 9), numbered()
    model(ids, mask)[mask > 0].square().sum().backward()
    together = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    for row, where in documents():
        model(ids[row : row + 1, where]).square().sum().backward()
    for weight, expected in zip(model.parameters(), together, strict=True):
        assert torch.allclose(weight.grad, expected, rtol=1e-10, atol=1e-12)

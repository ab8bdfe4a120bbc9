"""The rolling cache: a window forgets what it cannot see, and nothing else changes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.model.cache import Cache
from pellucid.model.config import Causal, Config, Init, Window
from pellucid.model.rotary import Rotary
from tiny import VOCAB, build, random_ids


def windowed(masks, positions=None):
    return build(
        Config(VOCAB, 64, 2, 24, 4, n_kv_heads=2, masks=masks, positions=positions or Rotary(), init=Init(0.4))
    )


def columns_held(cache):
    return {layer: held.room.shape[1] for layer, held in cache._keys.items()}


@pytest.mark.slow
def test_mistral_a_rolling_cache_equals_the_full_pass_over_three_windows():
    model, ids, width = windowed((Window(7),)), random_ids(2, 40), 7
    for chunks in ([1] * 40, [16, *[1] * 24], [7] * 5 + [5], [3, 11, 2, 13, 11]):
        cache, out, start = Cache(model.config.masks), [], 0
        for size in chunks:
            part = ids[:, start : start + size]
            here = model.begin(part, None, cache)
            out.append(model.logits(model.run(model.embed(part, here), here), here))
            start += size
        torch.testing.assert_close(torch.cat(out, 1), model(ids), atol=1e-11, rtol=1e-11)
        assert max(columns_held(cache).values()) <= width - 1 + max(chunks) + 64


@pytest.mark.slow
def test_a_window_far_shorter_than_the_text_holds_little_and_a_dense_layer_all():
    model, cache = windowed((Causal(), Window(4))), Cache((Causal(), Window(4)))
    ids = torch.randint(0, VOCAB, (1, 400), generator=torch.Generator().manual_seed(0))
    for t in range(400):
        here = model.begin(ids[:, t : t + 1], None, cache)
        model.run(model.embed(ids[:, t : t + 1], here), here)
    held = columns_held(cache)
    assert held[0] >= 400
    assert held[1] <= 70


@pytest.mark.slow
@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 5), min_size=2, max_size=3),
    st.sampled_from([(Window(3),), (Causal(), Window(2)), (Window(5), Window(2))]),
    st.data(),
)
def test_rows_that_leave_and_padding_change_nothing_through_a_window(pads, masks, data):
    """Left-padded rows, some of which leave half-way, each get what they would get alone."""
    model, length = windowed(masks), 14
    ids, rows = random_ids(len(pads), length), list(range(len(pads)))
    mask = torch.tensor([[0] * pad + [1] * (length - pad) for pad in pads])
    leave = data.draw(st.integers(6, 12))
    kept = data.draw(st.lists(st.sampled_from(rows), min_size=1, max_size=len(pads), unique=True))
    cache, last = Cache(masks), {}
    for start, end in [(0, 6), *((t, t + 1) for t in range(6, length))]:
        if start == leave:
            cache.keep([rows.index(row) for row in kept])
            rows = kept
        part, seen = ids[rows, start:end], mask[rows, start:end]
        here = model.begin(part, None if bool(seen.all()) else seen, cache)
        logits = model.logits(model.run(model.embed(part, here), here), here)
        last |= {row: logits[i, -1] for i, row in enumerate(rows)}
    for row in kept:
        torch.testing.assert_close(last[row], model(ids[row : row + 1, pads[row] :])[0, -1], atol=1e-11, rtol=1e-11)

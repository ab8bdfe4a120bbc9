"""Heads: shapes, costs, and that what they write adds up."""

import numpy as np
import pytest
from hypothesis import given, settings

from pellucid.lessons.heads import heads, heads_on, recomputed_on
from tiny import build, configs, random_ids, tiny_gpt2, traced


def test_the_matrices_of_a_head_in_gpt2_small():
    shapes, work = heads().tables
    rows = {row[0]: row[1:] for row in shapes}
    assert rows["W_Q^h, W_K^h, W_V^h"] == ("768 x 64", 3 * 768 * 64)
    assert rows["W_O^h"] == ("64 x 768", 64 * 768)
    assert rows["12 heads"][1] == rows["one head of full width"][1] == 4 * 768**2
    many, one = work.rows
    assert many[1:3] == (12, 64)
    assert one[1:3] == (1, 768)
    assert many[3:] == one[3:] == (2 * 768, 8 * 768**2)


def test_heads_that_cannot_share_the_width():
    with pytest.raises(ValueError, match="7 heads cannot share 768"):
        heads(768, 7)


@settings(max_examples=6)
@given(configs("decoder").filter(lambda config: config.encoder is None))
def test_concatenated_heads_write_the_sum_of_what_each_writes(config):
    (table,) = heads_on(traced(build(config), random_ids(1, 4))).tables
    assert len(table) == config.n_layers
    for _, joined, update, own, others in table:
        assert max(joined, update) < 1e-12
        assert own > 1e-9
        assert others == 0


def test_the_head_that_is_shown_is_the_one_whose_pattern_differs_most():
    model = tiny_gpt2()
    one, other = traced(model, random_ids(1, 6, seed=1)), traced(model, random_ids(1, 4, seed=2))
    first, second = recomputed_on(one, other).tables
    best, at = -1.0, None
    for layer in range(2):
        a, b = (each[f"{layer}.attention.pattern"][0, :, -1].numpy() for each in (one, other))
        apart = np.abs(a - np.pad(b, ((0, 0), (0, 2)))).sum(1) / 2
        if apart.max() > best:
            best, at = apart.max(), (layer, int(apart.argmax()))
    layer, head = at
    assert first.title == f"head {layer}.{head} on the first text"
    assert first.column("attention") == tuple(one[f"{layer}.attention.pattern"][0, head, -1].tolist())
    assert second.column("attention") == tuple(other[f"{layer}.attention.pattern"][0, head, -1].tolist())
    assert f"Total variation {best:.3f}" in second.note

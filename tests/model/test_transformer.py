"""The transformer against formulas and against itself run in other ways."""

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from formula import Formula
from pellucid.model.cache import Cache
from pellucid.model.config import Config, Dropout, LayerNorm, RMSNorm
from pellucid.model.rotary import Rotary
from pellucid.model.sites import sites
from pellucid.model.transformer import Transformer
from tiny import CONTEXT, VOCAB, arguments, build, configs, random_ids, tiny_gpt2


def unchanged(value, _place, _keys):
    return value


def stepwise(model: Transformer, ids, chunks, mask=None, extra=None):
    """Logits through a cache, in chunks of the given sizes; `extra` as `arguments` gives it."""
    extra, cache, outputs, start = extra or {}, Cache(model.config.masks), [], 0
    memory = model.encode(extra["source"]) if "source" in extra else None
    for size in chunks:
        part = ids[:, start : start + size]
        seen = None if mask is None else mask[:, start : start + size]
        types = extra["types"][:, start : start + size] if "types" in extra else None
        here = model.begin(part, seen, cache, length=ids.shape[1], memory=memory)
        outputs.append(model.logits(model.run(model.embed(part, here, types), here), here))
        start += size
    return torch.cat(outputs, dim=1)


@pytest.mark.slow
@settings(max_examples=60)
@given(configs(), st.integers(1, 9))
def test_logits_are_the_lessons_formula(config, length):
    model, ids = build(config), random_ids(1, length)
    extra = arguments(config, 1, 4 if config.encoder else length)
    rows = {name: value[0] for name, value in extra.items()}
    expected = Formula(config, model.state_dict()).logits(ids[0], **rows)
    torch.testing.assert_close(model(ids, **extra)[0], expected, atol=1e-10, rtol=1e-10)


@pytest.mark.slow
@settings(max_examples=30)
@given(configs(), st.integers(1, 9), st.integers(1, 3), st.data())
def test_open_and_fused_attention_agree(config, length, rows, data):
    model, ids, extra = build(config), random_ids(rows, length), arguments(config, rows, length)
    pads = [data.draw(st.integers(0, length - 1)) for _ in range(rows)]
    mask = torch.tensor([[0] * pad + [1] * (length - pad) for pad in pads])
    looks = {site.name: unchanged for site in sites(config) if site.name.endswith(".pattern")}
    masks = {"source_mask": mask} if config.encoder else {}
    torch.testing.assert_close(model(ids, looks=looks, **extra), model(ids, **extra), atol=1e-11, rtol=1e-11)
    opened = model(ids, mask, looks, **extra, **masks)
    torch.testing.assert_close(opened, model(ids, mask, **extra, **masks), atol=1e-11, rtol=1e-11)


@settings(max_examples=20)
@given(configs(), st.integers(1, 9), st.sampled_from([torch.float32, torch.float64]))
def test_a_look_that_changes_nothing_changes_nothing(config, length, dtype):
    model, ids, extra = build(config, dtype=dtype), random_ids(2, length), arguments(config, 2, length)
    opens = ("scores", "pattern", "writes", "scale")
    looks = {site.name: unchanged for site in sites(config) if not site.name.endswith(opens)}
    assert torch.equal(model(ids, looks=looks, **extra), model(ids, **extra))


@pytest.mark.slow
@settings(max_examples=40)
@given(configs(), st.integers(1, 9))
def test_every_site_is_seen_once_with_its_shape_in_order(config, length):
    model, ids, seen = build(config), random_ids(2, length), []

    def watch(name):
        def look(value, _place, _keys):
            seen.append((name, tuple(value.shape)))
            return value

        return look

    model(ids, looks={site.name: watch(site.name) for site in sites(config)}, **arguments(config, 2, length))
    assert seen == [(site.name, site.shape(config, length, 2)) for site in sites(config)]


@pytest.mark.slow
@settings(max_examples=30)
@given(configs("causal"), st.lists(st.integers(1, 4), min_size=1, max_size=5), st.data())
def test_chunks_through_the_cache_equal_the_full_pass(config, chunks, data):
    model, length = build(config), sum(chunks)
    ids, extra = random_ids(2, length), arguments(config, 2, length)
    torch.testing.assert_close(stepwise(model, ids, chunks, extra=extra), model(ids, **extra), atol=1e-10, rtol=1e-10)
    pad = data.draw(st.integers(0, chunks[0] - 1))
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, :pad] = 0
    full, parts = model(ids, mask, **extra), stepwise(model, ids, chunks, mask, extra)
    torch.testing.assert_close(parts[mask.bool()], full[mask.bool()], atol=1e-10, rtol=1e-10)


@settings(max_examples=20)
@given(configs("causal"), st.integers(2, 9))
def test_logits_at_a_position_are_those_of_the_prefix(config, length):
    model, ids, extra = build(config), random_ids(1, length), arguments(config, 1, length)
    shorter = {name: value[:, :-1] if name == "types" else value for name, value in extra.items()}
    full = model(ids, **extra)[:, : length - 1]
    torch.testing.assert_close(full, model(ids[:, :-1], **shorter), atol=1e-11, rtol=1e-11)


@pytest.mark.slow
@settings(max_examples=40)
@given(configs(), st.integers(1, 6), st.integers(0, 4), st.booleans())
def test_padding_on_either_side_changes_no_token(config, length, pad, left):
    model, ids, extra = build(config), random_ids(1, length), arguments(config, 1, length)

    def padded(row):
        fill = torch.full((1, pad), 1)
        both = torch.cat((fill, row) if left else (row, fill), dim=1)
        return torch.cat((both, both))

    mask = torch.tensor([[0] * pad + [1] * length if left else [1] * length + [0] * pad] * 2)
    masks = {"source_mask": mask} if config.encoder else {}
    logits = model(padded(ids), mask, **{name: padded(value) for name, value in extra.items()}, **masks)
    assert torch.isfinite(logits).all()
    torch.testing.assert_close(logits[1][mask[0].bool()], model(ids, **extra)[0], atol=1e-11, rtol=1e-11)


def test_pos_1_positions_come_from_the_mask():
    model = tiny_gpt2()
    ids, mask = torch.tensor([[5, 6, 7, 8], [0, 0, 9, 10]]), torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    assert model.begin(ids, mask).place.positions.tolist() == [[0, 1, 2, 3], [0, 0, 0, 1]]
    alone = model(torch.tensor([[9, 10]]))[0, -1]
    torch.testing.assert_close(model(ids, mask)[1, -1], alone, atol=1e-12, rtol=1e-12)
    right, right_mask = torch.tensor([[9, 10, 0, 0]]), torch.tensor([[1, 1, 0, 0]])
    logits = model(right, right_mask)[0]
    torch.testing.assert_close(logits[1], alone, atol=1e-12, rtol=1e-12)
    assert (logits[-1] - alone).abs().max() > 1


def test_pos_3_a_longer_input_than_the_position_table_is_refused():
    model = tiny_gpt2()
    assert model(random_ids(1, 16)).shape == (1, 16, 50)
    with pytest.raises(ValueError, match=r"17 positions.*only 16"):
        model(random_ids(1, 17))
    assert model(random_ids(1, 16)).shape == (1, 16, 50)


@pytest.mark.parametrize("chunks", [[1] * 10, [4, 3, 3]])
def test_pos_4_cached_equals_full(chunks):
    ids = random_ids(1, 10)
    model = tiny_gpt2()
    assert (stepwise(model, ids, chunks) - model(ids)).abs().max() <= 1e-10
    single = tiny_gpt2(torch.float32)
    assert (stepwise(single, ids, chunks) - single(ids)).abs().max() <= 1e-4


@pytest.mark.slow
def test_pos_4_cached_equals_full_with_grouped_queries():
    config = Config(
        200, 64, 4, 512, 8, n_kv_heads=2, positions=Rotary(), norm=RMSNorm(), qkv_bias=False, out_bias=False
    )
    ids = torch.randint(0, 200, (1, 32), generator=torch.Generator().manual_seed(3))
    for dtype, bound in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        model = build(config, dtype=dtype)
        assert (stepwise(model, ids, [1] * 32) - model(ids)).abs().max() <= bound


def test_att_5_dropout_is_off_in_eval():
    ids = random_ids(2, 8)
    plain = tiny_gpt2()
    dropping = tiny_gpt2(dropout=Dropout(0.5, 0.5, 0.5))
    dropping.load_state_dict(plain.state_dict())
    assert torch.equal(dropping(ids), plain(ids))
    assert torch.equal(dropping(ids), dropping(ids))
    dropping.train()
    assert not torch.equal(dropping(ids), dropping(ids))


@pytest.mark.parametrize("kind", ["embedding", "attention", "update"])
@pytest.mark.parametrize("looks", [None, {"0.attention.pattern": unchanged}])
def test_each_dropout_drops_while_training(kind, looks):
    model = tiny_gpt2(dropout=Dropout(**{kind: 0.5}), n_layers=1).train()
    assert not torch.equal(model(random_ids(1, 8), looks=looks), model(random_ids(1, 8), looks=looks))


def test_a_sublayer_that_writes_zero_leaves_the_stream_unchanged():
    model, ids, seen = tiny_gpt2(), random_ids(1, 5), {}

    def keep(value, _place, _keys, name=None):
        seen[name] = value
        return value

    def keeper(name):
        return lambda value, place, keys: keep(value, place, keys, name)

    looks = {name: keeper(name) for name in ("0.stream", "0.stream.mid", "1.stream")}
    looks["0.attention.update"] = looks["0.ffn.update"] = lambda value, _place, _keys: torch.zeros_like(value)
    model(ids, looks=looks)
    assert torch.equal(seen["0.stream"], seen["0.stream.mid"])
    assert torch.equal(seen["0.stream"], seen["1.stream"])


def test_views_of_the_fused_weights_are_the_heads_matrices():
    model = build(Config(VOCAB, CONTEXT, 1, 24, 6, n_kv_heads=3, d_head=8))
    attention = model.blocks[0].attention
    assert attention.W_Q.shape == (6, 24, 8)
    assert attention.W_K.shape == attention.W_V.shape == (3, 24, 8)
    assert attention.W_O.shape == (6, 8, 24)
    attention.W_V[2].zero_()
    assert (attention.qkv.weight[-8:] == 0).all()
    assert not (attention.qkv.weight[:-8] == 0).any()


COMPILED = """
import torch
from pellucid.model.config import Config
from pellucid.model.transformer import Transformer

graphs = []
def count(graph, inputs):
    graphs.append(graph)
    return graph.forward

model, ids = Transformer(Config(50, 16, 2, 32, 4)).eval(), torch.arange(16).view(2, 8)
compiled = torch.compile(model, backend=count, fullgraph=True)
assert torch.equal(compiled(ids), model(ids))
assert len(graphs) == 1
"""


@pytest.mark.slow
def test_the_unwatched_pass_compiles_into_one_graph():
    # In a process of its own: the shape checker of this one is code that cannot be traced.
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_gradients_reach_every_weight():
    model = tiny_gpt2().requires_grad_(True)
    torch.nn.functional.cross_entropy(model(random_ids(2, 16)).flatten(0, 1), random_ids(2, 16, 2).flatten()).backward()
    assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in model.parameters())


def test_a_model_can_be_copied_and_pickled():
    model, ids = tiny_gpt2(), random_ids(1, 4)
    assert torch.equal(copy.deepcopy(model)(ids), model(ids))
    assert torch.equal(pickle.load(io.BytesIO(pickle.dumps(model)))(ids), model(ids))


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (torch.zeros(1, 0, dtype=torch.long), "at least one"),
        (torch.tensor([[50]]), "0..49, got 50"),
        (torch.tensor([[-1, 3]]), "0..49, got -1"),
    ],
)
def test_impossible_ids_are_refused(ids, said):
    with pytest.raises(ValueError, match=said):
        tiny_gpt2()(ids)


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ([[1, 1]], "ids' shape"),
        ([[0, 0, 0]], "row 0 .* no token"),
        ([[1, 2, 1]], "only 1"),
        ([[0.0, -1e9, 0.0]], "only 1"),
    ],
)
def test_impossible_masks_are_refused(mask, said):
    with pytest.raises(ValueError, match=said):
        tiny_gpt2()(torch.tensor([[1, 2, 3]]), torch.tensor(mask))


def test_layer_norm_of_the_lessons_example():
    from pellucid.model.layers import Norm

    norm = Norm(LayerNorm(1e-12), 8).double()
    x = torch.tensor([[[2.0, 4, 4, 4, 5, 5, 7, 9]]], dtype=torch.float64)
    expected = torch.tensor([-1.5, -0.5, -0.5, -0.5, 0, 0, 1, 2], dtype=torch.float64)
    torch.testing.assert_close(norm(x)[0, 0], expected)
    torch.testing.assert_close(norm.with_scale(x, norm.scale(x))[0, 0], expected)


def test_bfloat16_runs_and_stays_near():
    ids = random_ids(2, 8)
    full, half = tiny_gpt2(torch.float32, n_layers=1), tiny_gpt2(torch.float32, n_layers=1).to(torch.bfloat16)
    assert half(ids).dtype == torch.bfloat16
    scale = full(ids).abs().max()
    assert (half(ids).float() - full(ids)).abs().max() < 0.1 * scale

"""Models with edits in their weights against the edited models, over all configs; and what cannot be written there."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pellucid as pl
from pellucid.inside.baking import baked
from pellucid.inside.errors import EditError, SiteError
from pellucid.inside.plan import plan
from pellucid.inside.reading import all_sites
from pellucid.model.config import Config, Parallel, PostNorm, RMSNorm, Sinusoidal, SwiGLU
from pellucid.model.rotary import Rotary
from tiny import VOCAB, build, configs, passed, random_ids, tiny_gpt2, traced, with_encoder

FULL = ("attention.value", "attention.heads", "attention.writes", "attention.update", "attention.input")
FULL += ("ffn.input", "ffn.up", "ffn.gate", "ffn.neurons", "ffn.update", "cross.heads", "cross.update", "cross.query")
SCALED = (*FULL, "attention.pattern", "attention.scores", "attention.query", "attention.key", "cross.pattern")
NARROW = {"H": "head", "G": "kv_head", "F": "neuron"}


def shape_of(site, config) -> list[int]:
    sizes = zip(site.axes, site.shape(config, 1), strict=True)
    return [size for axis, size in sizes if axis not in ("B", "T", "S")]


@st.composite
def edits_for(draw, model):
    """Up to five edits that weights can say, of whole values and of some heads or neurons."""
    config, found = model.config, []
    constants = config.qkv_bias and config.out_bias and config.ffn_bias
    by_name = {site.name: site for site in all_sites(model)}
    for _ in range(draw(st.integers(1, 5))):
        kinds = ["zero", "scale", "scale", *(["set", "add", "add"] if constants else [])]
        kind = draw(st.sampled_from(kinds))
        endings = SCALED if kind == "scale" else FULL
        names = [name for name in by_name if name.endswith(endings) and "T" in by_name[name].axes]
        site = by_name[draw(st.sampled_from(names))]
        own = config.encoder if site.name.startswith("encoder.") and config.encoder else config
        axis = next((axis for axis in NARROW if axis in site.axes), None)
        where = {NARROW[axis]: 0} if axis is not None and draw(st.booleans()) else {}
        shape = shape_of(site, own)
        if where:
            shape[[a for a in site.axes if a not in ("B", "T", "S")].index(axis)] = 1
        value = torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 9)))).double()
        match kind:
            case "zero":
                found.append(pl.zero(site.name, **where))
            case "scale":
                found.append(pl.scale(site.name, draw(st.sampled_from([-1.5, 0.5, 2.0])), **where))
            case "set":
                found.append(pl.set(site.name, value, **where))
            case "add":
                found.append(pl.add(site.name, value, **where))
    return found


@settings(max_examples=25)
@given(configs(), st.data())
def test_the_baked_models_logits_are_the_edited_models(config, data):
    model = build(config)
    found = data.draw(edits_for(model))
    try:
        looks = plan(model, found).looks()
    except EditError:
        return  # two of them replace the same numbers
    ids = random_ids(2, 5)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    new = baked(model, found)
    torch.testing.assert_close(passed(new, ids), passed(model, ids, looks=looks), atol=1e-11, rtol=1e-11)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert new.config == model.config


def same(model, *found) -> None:
    """The baked model is the edited one, and no edit is without effect."""
    ids = random_ids(2, 5)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    edited = passed(model, ids, mask, plan(model, found).looks())[mask.bool()]
    torch.testing.assert_close(passed(baked(model, found), ids, mask)[mask.bool()], edited, atol=1e-12, rtol=1e-12)
    assert not torch.allclose(edited, passed(model, ids, mask)[mask.bool()])


STEER = torch.linspace(-1, 1, 32, dtype=torch.float64)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, [pl.add("0.stream", STEER)]),
        ({}, [pl.add("1.stream", STEER), pl.scale("0.ffn.update", 0.5)]),
        ({}, [pl.add("1.stream.mid", STEER), pl.set("1.attention.update", STEER)]),
        ({}, [pl.add("2.stream", STEER)]),
        ({}, [pl.scale("final.normed", 1.5), pl.add("final.normed", STEER)]),
        ({}, [pl.scale("embed.position", 0.5), pl.add("embed.position", STEER)]),
        ({"tied": False, "embedding_scale": 2.5}, [pl.scale("embed.token", 0.5), pl.add("embed.token", STEER)]),
        ({"tied": False, "positions": Sinusoidal(), "embedding_scale": 2.5}, [pl.add("0.stream", STEER)]),
        ({"embedding_norm": True}, [pl.scale("0.stream", 0.5), pl.add("embed.sum", STEER)]),
        ({"block": PostNorm()}, [pl.scale("1.stream", 2.0), pl.add("0.attention.sum", STEER)]),
        ({"block": Parallel(1)}, [pl.add("1.stream", STEER), pl.zero("0.attention.input")]),
        ({}, [pl.zero("0.attention.scores", head=1), pl.zero("1.attention.pattern", head=[0, 2])]),
        ({"positions": Rotary()}, [pl.zero("0.attention.query", head=1), pl.scale("1.attention.key", 3.0)]),
        ({}, [pl.set("0.attention.query", 0.5, head=3), pl.add("1.attention.key", STEER[:8])]),
        ({}, [pl.add("0.attention.heads", STEER[:8], head=1), pl.scale("0.attention.writes", -2.0)]),
        ({"ffn_bias": False}, [pl.add("1.stream.mid", STEER), pl.scale("1.ffn.neurons", 9.0, neuron=[4, 5])]),
    ],
)
def test_steering_and_other_edits_in_the_weights(changes, found):
    same(tiny_gpt2(**changes), *found)


def test_both_sides_of_an_encoder_decoder():
    model = build(with_encoder(tiny_gpt2().config))
    edits = [pl.zero("encoder.0.attention.heads", head=1), pl.add("encoder.1.stream", STEER)]
    same(model, *edits, pl.scale("decoder.1.cross.update", -1.0), pl.add("decoder.1.stream.cross", STEER))


def test_a_model_without_biases_keeps_its_config():
    config = Config(VOCAB, 16, 2, 32, 4, n_kv_heads=2, positions=Rotary(), norm=RMSNorm(), activation=SwiGLU())
    model = build(
        Config(
            **(vars(config) | dict.fromkeys(("qkv_bias", "out_bias", "ffn_bias"), False)),
        )
    )
    same(model, pl.zero("0.attention.value", kv_head=1), pl.scale("1.ffn.gate", 2.0), pl.zero("1.attention.update"))
    with pytest.raises(EditError, match="needs a bias"):
        baked(model, [pl.add("1.stream", STEER)])


def test_a_trained_models_weights_stay_trainable():
    model = tiny_gpt2(torch.float32).train().requires_grad_()
    new = baked(model, [pl.zero("0.ffn.update")])
    assert new.training
    assert all(weight.requires_grad and weight.dtype == torch.float32 for weight in new.parameters())
    assert not {id(weight) for weight in new.parameters()} & {id(weight) for weight in model.parameters()}
    assert new.W_U is new.embed.words


def other():
    return traced(tiny_gpt2(), random_ids(1, 3, seed=5))


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda: pl.zero("1.ffn.update", position=2), "narrowed to some positions"),
        (lambda: pl.patch("1.stream", other()), "narrowed to some positions"),
        (lambda: pl.knockout("1.attention.scores", key=1), "keys are hidden"),
        (lambda: pl.noise("1.stream", 0.1), "another number at each position"),
        (lambda: pl.map("1.stream", torch.relu), "free function"),
        (lambda: pl.set("1.attention.pattern", 0.5), "zeroed or scaled"),
        (lambda: pl.scale("1.attention.input.scale", 2.0), "norm's scale"),
        (lambda: pl.scale("1.stream", 2.0), "no weights of this model"),
        (lambda: pl.zero("embed.token"), "tied"),
        (lambda: pl.add("logits", 1.0), "unembedding"),
    ],
)
def test_what_no_weights_say_is_refused(edit, why):
    with pytest.raises(EditError, match=f"cannot be written into weights: .*{why}"):
        baked(tiny_gpt2(), [edit()])


def test_rotated_queries_take_one_factor_a_head():
    model = tiny_gpt2(positions=Rotary())
    for edit in (pl.add("0.attention.query", 1.0), pl.set("1.attention.key", STEER[:8])):
        with pytest.raises(EditError, match="rotated by position"):
            baked(model, [edit])


def test_edits_that_make_no_sense_are_told_as_ever():
    with pytest.raises(SiteError, match="did you mean"):
        baked(tiny_gpt2(), [pl.zero("1.ffn.updat")])

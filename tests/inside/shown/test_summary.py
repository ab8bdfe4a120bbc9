"""What is said of a model and of a run, against the model itself."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pellucid as pl
from any_edits import some_edits
from letters import bytes_as_tokens
from pellucid.inside.edits import Edit
from pellucid.inside.reading import all_sites
from pellucid.inside.shown.edits_said import edit_as_python, edit_in_words, edit_said
from pellucid.inside.shown.summary import model_info, trace_info
from pellucid.inside.trace import trace
from pellucid.model.config import Bidirectional, Causal, Config, Parallel, Window
from pellucid.model.transformer import Transformer
from tiny import VOCAB, build, configs, random_ids, tiny_gpt2, traced


@settings(max_examples=20)
@given(configs())
def test_a_model_is_summed_up(config):
    model = build(config)
    found = model_info(model, "tiny", "m")
    assert (found["id"], found["name"], found["vocab_size"], found["gated"]) == ("m", "tiny", VOCAB, config.gated)
    assert found["parameters"] == sum(weight.numel() for weight in model.parameters())
    assert Config.from_dict(found["config"]) == config
    assert found["dtype"] == "float64"
    assert found["prefix"] == ("" if config.encoder is None else "decoder.")
    family = "encoder-decoder" if config.encoder else "decoder" if config.causal else "encoder"
    assert found["family"] == family
    assert found["fills"] == (config.masks == (Bidirectional(),))
    assert len(found["masks"]) == len(found["attention_scale"]) == config.n_layers
    scales = [part.scale for step in model.steps for part in step.parts if part.name.endswith(".attention")]
    assert found["attention_scale"] == scales
    assert [row[0] for row in found["sites"]["rows"]] == [site.name for site in all_sites(model)]


@settings(max_examples=20)
@given(configs())
def test_the_budget_adds_up_block_by_block(config):
    model = build(config)
    rows = [dict(zip(found["columns"], row, strict=True)) for found in [_budget(model)] for row in found["rows"]]
    outer = [row for row in rows if not row["within"]]
    assert sum(row["parameters"] for row in outer) == sum(weight.numel() for weight in model.parameters())
    assert sum(row["share"] for row in outer) == pytest.approx(1)
    sides = {"blocks": model, "decoder's blocks": model, "encoder's blocks": model.encoder}
    for row in outer:
        if row["part"] in sides:
            inner = [each for each in rows if each["within"] == row["part"]]
            side = sides[row["part"]]
            assert side is not None
            one = sum(weight.numel() for weight in side.blocks[0].parameters())
            assert sum(each["parameters"] for each in inner) == one
            assert row["parameters"] == one * side.config.n_layers
    assert {row["within"] for row in rows} - {""} == {row["part"] for row in outer} & set(sides)


def _budget(model: Transformer) -> dict:
    return model_info(model, "tiny", "m")["budget"]


def test_masks_are_said_layer_by_layer():
    def said(**changes):
        return model_info(tiny_gpt2(n_layers=3, **changes), "tiny", "m")["masks"]

    assert said() == ["causal"] * 3
    assert said(masks=(Bidirectional(),)) == ["bidirectional"] * 3
    assert said(masks=(Window(5), Causal())) == ["window of 5", "causal", "window of 5"]


@settings(max_examples=20)
@given(configs(), st.data())
def test_a_run_is_summed_up(config, data):
    model, ids = build(config), random_ids(1, 5)
    edits = [edit for edit in some_edits(data.draw, model, traced(model, ids)) if ".scores" not in edit.site]
    run = traced(model, ids).edit(*edits)
    found = trace_info(run, "t", "m", "a text")
    assert (found["id"], found["model"], found["text"]) == ("t", "m", "a text")
    assert found["ids"] == ids[0].tolist()
    assert found["tokens"] == found["texts"] == [str(id) for id in found["ids"]]
    assert (found["source_tokens"] is None) == (config.encoder is None)
    assert len(found["states"]) == len(run.states)
    assert all(torch.equal(run[name], state) for name, state in zip(found["states"], run.states, strict=True))
    assert len(found["edits"]) == len(edits)
    assert found["bytes"] == run.nbytes
    logits = run["decoder.logits" if config.encoder else "logits"][0, -1]
    rows = found["next"]["rows"]
    assert [row[2] for row in rows] == logits.topk(10).indices.tolist()
    assert [row[4] for row in rows] == pytest.approx(logits.topk(10).values.tolist())
    assert [row[3] for row in rows] == pytest.approx(logits.softmax(0).topk(10).values.tolist())


def test_without_a_head_there_is_no_next_token_and_few_words_give_few_rows():
    bare = tiny_gpt2(masks=(Bidirectional(),), head=None)
    assert trace_info(traced(bare, random_ids(1, 4)), "t", "m", "")["next"] is None
    assert not model_info(bare, "tiny", "m")["fills"]
    few = tiny_gpt2(vocab_size=7)
    found = trace_info(traced(few, random_ids(1, 4) % 7), "t", "m", "")
    assert len(found["next"]["rows"]) == 7


def test_padding_is_left_out():
    mask = torch.tensor([[0, 1, 1, 1]])
    found = trace_info(traced(tiny_gpt2(), random_ids(1, 4), mask), "t", "m", "")
    assert found["ids"] == random_ids(1, 4)[0, 1:].tolist()


def test_what_tokens_add_to_the_text(tmp_path):
    tokenizer = bytes_as_tokens(tmp_path)
    e, acute = tokenizer.encode("é")
    ids = [*tokenizer.encode("a"), e, acute, 300, *tokenizer.encode("a"), e]
    model = tiny_gpt2(vocab_size=301)
    found = trace_info(trace(model, torch.tensor([ids]), tokenizer=tokenizer), "t", "m", "")
    assert found["texts"] == ["a", "", "é", "", "a", "\ufffd"]
    assert found["tokens"] == tokenizer.labels(ids)


# --- Edits ---

numbers = st.floats(-1e3, 1e3, allow_nan=False)
few = st.one_of(st.none(), st.integers(0, 3), st.lists(st.integers(0, 9), max_size=4, unique=True))
sites = st.sampled_from(["3.attention.heads", "0.stream", "decoder.1.cross.scores", "it's"])
values = st.one_of(
    numbers, st.lists(numbers, min_size=1, max_size=3).map(lambda row: torch.tensor(row, dtype=torch.float64)),
    st.lists(numbers, min_size=2, max_size=2).map(lambda row: torch.tensor([row, row])), st.just(float("inf")),
)  # fmt: skip
where = st.fixed_dictionaries({}, optional={"head": few, "kv_head": few, "neuron": few, "position": few, "key": few})


@st.composite
def edits(draw) -> Edit:
    kind, site, places = (
        draw(st.sampled_from(["zero", "set", "add", "scale", "noise", "knockout"])),
        draw(sites),
        draw(where),
    )
    if kind in ("set", "add"):
        return (pl.set if kind == "set" else pl.add)(site, draw(values), **places)
    if kind == "scale":
        return pl.scale(site, draw(numbers), **places)
    if kind == "noise":
        return pl.noise(site, draw(st.floats(0, 5)), draw(st.integers(0, 9)), **places)
    if kind == "knockout":
        return pl.knockout("2.attention.scores", **places)
    return pl.zero(site, **places)


@given(edits())
def test_the_python_of_an_edit_makes_it_again(edit):
    again = eval(edit_as_python(edit), {"pl": pl, "torch": torch})
    assert again.to_json() == edit.to_json()
    assert edit_as_python(edit).startswith(f"pl.{edit.kind}(")


@pytest.mark.slow
@settings(max_examples=20)
@given(st.data())
def test_edits_with_values_of_another_run_too(data):
    model = tiny_gpt2()
    for edit in some_edits(data.draw, model, traced(model, random_ids(1, 5, seed=4))):
        said = edit_said(edit)
        assert said["says"] == edit_in_words(edit) if edit.function is None else "function" in said["says"]
        if edit.function is not None:
            assert said["json"] is None
            continue
        assert said["json"] == edit.to_json()
        assert eval(said["python"], {"pl": pl, "torch": torch}).to_json() == edit.to_json()
        ids = random_ids(1, 5)
        again = traced(model, ids).edit(eval(said["python"], {"pl": pl, "torch": torch}))
        assert torch.equal(again.states[-1], traced(model, ids).edit(edit).states[-1])


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (pl.zero("9.attention.heads", head=6), "zero 9.attention.heads, head 6"),
        (pl.scale("3.ffn.up", 8, neuron=[0, 2], position=4), "scale 3.ffn.up by 8, neurons 0, 2, position 4"),
        (pl.add("2.stream", torch.ones(32), position=[1, 2, 3]), "add to 2.stream: 32 numbers, positions 1-3"),
        (pl.set("2.stream", 0.5), "set 2.stream to 0.5"),
        (pl.add("1.attention.scores", [2.0, 0.5], key=[1, 4]), "add to 1.attention.scores: 2 numbers, keys 1, 4"),
        (pl.set("1.attention.scores", 2.5, head=3, key=4), "set 1.attention.scores to 2.5, head 3, key 4"),
        (pl.knockout("1.attention.scores", key=0), "hide keys in 1.attention.scores, key 0"),
        (pl.noise("embed.token", 0.3, 2), "noise on embed.token, std 0.3, seed 2"),
        (pl.zero("1.ffn.up", neuron=[9, 1, 4, 6, 2, 8, 3]), "zero 1.ffn.up, neurons 9, 1, 4, 6, 2, 8 and 1 more"),
        (pl.zero("1.stream", position=[]), "zero 1.stream, positions none"),
        (Edit("set", "1.stream", value=torch.ones(2, 32), at=(0, 1)), "set 1.stream to 64 numbers, positions 0, 1"),
    ],
)  # fmt: skip
def test_edits_in_words(edit, words):
    assert edit_in_words(edit) == words


def test_a_parallel_model_has_no_state_in_the_middle():
    run = traced(build(Config(VOCAB, 16, 2, 24, 3, block=Parallel(1))), random_ids(1, 4))
    assert trace_info(run, "t", "m", "")["states"] == ["0.stream", "1.stream", "2.stream"]
